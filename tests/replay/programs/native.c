/* A bit of everything that a stack can be: recursion, inlined functions, callbacks from libc, threads that work, sleep
   and wait. Runs until it is killed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

static volatile unsigned long sink;

static inline unsigned long mixed(unsigned long x)
{
	x ^= x << 13;
	x ^= x >> 7;
	return x ^ x << 17;
}

static int by_value(const void *a, const void *b)
{
	unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
	sink += mixed(x ^ y);
	return (x > y) - (x < y);
}

KEEP void sorting(void)
{
	unsigned long values[24];
	for (int i = 0; i < 24; i++)
		values[i] = mixed(sink + i);
	qsort(values, 24, sizeof *values, by_value);
	sink += values[7];
}

KEEP unsigned long descend(unsigned depth, unsigned long x)
{
	unsigned long found = depth ? descend(depth - 1, mixed(x)) + 1 : 0;
	for (int i = 0; i < 200; i++)
		found = mixed(found + i);
	return found;
}

KEEP void *works(void *unused)
{
	for (;;) {
		sorting();
		sink += descend(25, sink);
	}
	return unused;
}

KEEP void *naps(void *unused)
{
	for (;;) {
		struct timespec t = {0, 7000000};
		nanosleep(&t, NULL);
		sink += descend(3, sink);
	}
	return unused;
}

static int pipes[2];

KEEP void *waits(void *unused)
{
	char byte;
	while (read(pipes[0], &byte, 1) == 1)
		sorting();
	return unused;
}

int main(void)
{
	pthread_t thread;
	if (pipe(pipes))
		return 1;
	pthread_create(&thread, NULL, naps, NULL);
	pthread_create(&thread, NULL, waits, NULL);
	puts("ready");
	fflush(stdout);
	works(NULL);
}
