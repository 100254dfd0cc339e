/*
 * Threads that alternate between two functions: c_lockstep CLOCK FILE PERIOD... Each thread has a period in nanoseconds and
 * spends half of it in first(), half in second(), by the clock of the machine (CLOCK is wall) or by its own processor time
 * (cpu). FILE has a struct truth of each thread: where the functions are, and the processor time that it spent in each.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long u64;

struct truth {
	u64 tid, first, first_end, second, second_end;
	volatile u64 spent_ns[2];
};

static struct truth *truths;
static u64 periods[64];
static clockid_t chosen;
extern char __start_first_code[], __stop_first_code[], __start_second_code[], __stop_second_code[];

static u64 now_ns(clockid_t clock)
{
	struct timespec at;
	clock_gettime(clock, &at);
	return at.tv_sec * 1000000000ul + at.tv_nsec;
}

#define WORK                                                                                                           \
	do                                                                                                             \
		for (volatile int n = 0; n < 2000; n++)                                                                \
			;                                                                                              \
	while ((2 * now_ns(chosen) / period) % 2 == half)

static __attribute__((noinline, section("first_code"))) void first(u64 period, u64 half)
{
	WORK;
}

static __attribute__((noinline, section("second_code"))) void second(u64 period, u64 half)
{
	WORK;
}

static void *alternate(void *number)
{
	struct truth *truth = truths + (u64)number;
	u64 period = periods[(u64)number], before = now_ns(CLOCK_THREAD_CPUTIME_ID);
	truth->first = (u64)__start_first_code;
	truth->first_end = (u64)__stop_first_code;
	truth->second = (u64)__start_second_code;
	truth->second_end = (u64)__stop_second_code;
	truth->tid = syscall(SYS_gettid);
	for (;;) {
		u64 half = 2 * now_ns(chosen) / period % 2;
		(half ? second : first)(period, half);
		u64 now = now_ns(CLOCK_THREAD_CPUTIME_ID);
		truth->spent_ns[half] += now - before;
		before = now;
	}
	return 0;
}

int main(int count, char **words)
{
	int file = open(words[2], O_RDWR);
	chosen = strcmp(words[1], "wall") ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
	truths = mmap(0, (count - 3) * sizeof(*truths), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (file < 0 || truths == MAP_FAILED)
		return 1;
	for (u64 n = 0; n < (u64)count - 3; n++) {
		pthread_t thread;
		periods[n] = strtoul(words[n + 3], 0, 10);
		pthread_create(&thread, 0, alternate, (void *)n);
		while (!*(volatile u64 *)&truths[n].tid)
			usleep(1000);
	}
	alarm(3600);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
