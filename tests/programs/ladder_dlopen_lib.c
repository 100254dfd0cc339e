/* One of the two libraries of ladder_dlopen.c: -DPREFIX=one or other; -DSHIFT=n moves its code by n * 16 bytes. */

#include "ladder.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT(a) #a
#define JOIN_TEXT(a) TEXT(a)

__asm__(".text\n.skip 16 * " JOIN_TEXT(SHIFT) " + 16, 0x90");

RUNG word JOIN(PREFIX, _top)(word x)
{
	for (volatile word turn = 100; turn; turn--)
		SPIN(x);
	return x;
}

#define EXPAND(p) LADDER(p)
EXPAND(PREFIX)
