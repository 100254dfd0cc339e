/* Threads that live for some milliseconds, one after the other. Where each begins it takes 1 MiB of its stack and touches
   little of it, as Ruby's do for its own stack; then it stands on a ladder of four rungs, r_01 .. r_04, r_top.

   ladder_room spin SECONDS */

#include "ladder.h"
#include <pthread.h>

#define ROOM (1 << 20)

RUNG word r_top(word x)
{
	for (volatile int turn = 0; turn < 3000000; turn++)
		x += turn;
	return x;
}

RUNG_PLAIN(r_04, r_top)
RUNG_SAVED(r_03, r_04)
RUNG_FIXED(r_02, r_03, 3)
RUNG_ALLOCA(r_01, r_02)

RUNG word with_room(word x)
{
	volatile char *room = alloca(ROOM + (x & 1));
	room[0] = room[5000] = 1;
	word y = r_01(x);
	return y + room[0];
}

RUNG void *begin(void *nothing)
{
	return (void *)(with_room((word)nothing) | 1);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	end_after(argv[2]);
	say_ready();
	for (;;) {
		pthread_t thread;
		if (pthread_create(&thread, 0, begin, 0) || pthread_join(thread, 0))
			return 3;
	}
}
