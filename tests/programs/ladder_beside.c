/* Two threads that spin: one at the bottom of a recursion DEPTH frames deep, for DEEP_SECONDS or until SIGUSR1, then
   flat; the other always flat.

   ladder_beside spin SECONDS DEEP_SECONDS [DEPTH] */

#include "ladder.h"

#include <pthread.h>
#include <signal.h>

static volatile double deep_until;

static void be_flat(int signal)
{
	(void)signal;
	deep_until = 0;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

RUNG word bottom(word x)
{
	while (now() < deep_until)
		x += 1;
	return x;
}

RUNG word down(word left)
{
	word y = left > 1 ? down(left - 1) : bottom(left);
	__asm__ volatile("" : "+r"(y));
	return y * 5 + left;
}

RUNG word flat(word x)
{
	for (;;)
		x += 1, now();
	return x;
}

static void *beside(void *x)
{
	pthread_setname_np(pthread_self(), "beside");
	flat((word)x);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	end_after(argv[2]);
	deep_until = now() + atof(argv[3]);
	signal(SIGUSR1, be_flat);
	pthread_t thread;
	if (pthread_create(&thread, 0, beside, 0))
		return 3;
	say_ready();
	volatile word x = down(argc > 4 ? (word)atol(argv[4]) : 4000);
	x = flat(x);
	return 0;
}
