/* Frames that realign the stack: gcc keeps the incoming stack pointer in r10 or a saved register (DRAP).

   Built with -mavx: 32-byte vectors on the stack, together with alloca, variable arrays and stack arguments.

   ladder_drap once | spin SECONDS | climb SECONDS */

#include "ladder.h"

typedef double vector __attribute__((vector_size(32)));

static volatile int stay;

RUNG void touch(volatile vector *v, volatile char *bytes)
{
	(*v)[1] += 1;
	bytes[0] = 1;
}

RUNG word r_top(word x)
{
	do {
		SPIN(x);
	} while (stay);
	return x;
}

#define REALIGN(name, next)                                                                                            \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		volatile vector v = {(double)x, 2, 3, 4};                                                              \
		char bytes[8];                                                                                         \
		touch(&v, bytes);                                                                                      \
		SPIN(x);                                                                                               \
		word y = next(x);                                                                                      \
		touch(&v, bytes);                                                                                      \
		return y + (word)v[0];                                                                                 \
	}

#define REALIGN_ALLOCA(name, next)                                                                                     \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		volatile vector v = {(double)x, 2, 3, 4};                                                              \
		char *bytes = alloca(16 + (x & 3) * 48);                                                               \
		touch(&v, bytes);                                                                                      \
		word y = next(x);                                                                                      \
		SPIN(y);                                                                                               \
		touch(&v, bytes);                                                                                      \
		return y + (word)v[0];                                                                                 \
	}

#define REALIGN_NINE(wide, next)                                                                                       \
	RUNG word wide(word x, word b, word c, word d, word e, word f, word g, word h, word i)                         \
	{                                                                                                              \
		volatile vector v = {(double)g, (double)h, 3, 4};                                                      \
		char bytes[1 + (x & 31)];                                                                              \
		touch(&v, bytes);                                                                                      \
		word y = next(x + b + c);                                                                              \
		SPIN(y);                                                                                               \
		touch(&v, bytes);                                                                                      \
		return y + d + e + f + g + h + i + (word)v[1];                                                         \
	}

REALIGN(r_08, r_top)
REALIGN_ALLOCA(r_07, r_08)
RUNG_SAVED(r_06, r_07)
REALIGN_NINE(r_05, r_06)
RUNG_WIDE(r_04, r_05)
REALIGN_ALLOCA(r_03, r_04)
RUNG_RBP(r_02, r_03)
REALIGN(r_01, r_02)

int main(int argc, char **argv)
{
	volatile word x = 3;
	if (argc == 2) {
		x = r_01(x);
		return 0;
	}
	if (argc != 3)
		return 2;
	end_after(argv[2]);
	rounds = 30;
	stay = !strcmp(argv[1], "spin");
	say_ready();
	for (;;)
		x = r_01(x);
}
