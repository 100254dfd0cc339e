/* A thread that spins inside a frame of 24 KB, of which nearly all pages have never been written.

   ladder_gap spin SECONDS */

#include "ladder.h"

#include <pthread.h>

RUNG word bottom(word x)
{
	for (;;)
		x += rounds;
	return x;
}

RUNG word wide(word x)
{
	char room[24 << 10];
	room[0] = x;
	__asm__ volatile("" : : "r"(room) : "memory");
	return bottom(x) + room[0];
}

RUNG void *outer(void *x)
{
	say_ready();
	return (void *)(wide((word)x) + 1);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	end_after(argv[2]);
	pthread_t thread;
	if (pthread_create(&thread, 0, outer, 0))
		return 3;
	pthread_join(thread, 0);
	return 0;
}
