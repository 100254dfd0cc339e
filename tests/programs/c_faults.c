/* A stack whose outer pages come and go while its thread runs: c_faults protect|drop|move.

   Twenty functions of 2 KB each stand on it, rung_01 outermost; the innermost spins, and works out whether its own
   variables are what they were. Another thread takes the pages of some of the outer ones away and gives them back, again
   and again: by mprotect, by MADV_DONTNEED of shared memory, which has its content again at the next touch, or by mremap.
   A line says how often, each second. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 1 << 20, PAGE = 4096 };
static char *stack, *aside;
static char *volatile lowest;
static volatile unsigned long taken, wrong, rounds, seen;

#define RUNG(name, inner)                                      \
	static __attribute__((noinline)) void name(void)       \
	{                                                      \
		volatile char room[2048];                      \
		room[0] = room[1024] = room[2047] = 1;         \
		inner();                                       \
		seen += room[0];                               \
	}

static __attribute__((noinline)) void top(void)
{
	volatile unsigned long mine[64];
	for (int n = 0; n < 64; n++)
		mine[n] = n;
	lowest = (char *)mine;
	for (;;) {
		for (int n = 0; n < 64; n++)
			wrong += mine[n] != (unsigned long)n;
		rounds++;
	}
}

RUNG(rung_20, top) RUNG(rung_19, rung_20) RUNG(rung_18, rung_19) RUNG(rung_17, rung_18) RUNG(rung_16, rung_17)
RUNG(rung_15, rung_16) RUNG(rung_14, rung_15) RUNG(rung_13, rung_14) RUNG(rung_12, rung_13) RUNG(rung_11, rung_12)
RUNG(rung_10, rung_11) RUNG(rung_09, rung_10) RUNG(rung_08, rung_09) RUNG(rung_07, rung_08) RUNG(rung_06, rung_07)
RUNG(rung_05, rung_06) RUNG(rung_04, rung_05) RUNG(rung_03, rung_04) RUNG(rung_02, rung_03) RUNG(rung_01, rung_02)

static void *run(void *nothing)
{
	rung_01();
	return nothing;
}

static void pause_us(long us)
{
	struct timespec time = {0, us * 1000};
	nanosleep(&time, NULL);
}

static void take(const char *how, char *at, size_t size)
{
	if (!strcmp(how, "protect")) {
		mprotect(at, size, PROT_NONE);
		pause_us(300);
		mprotect(at, size, PROT_READ | PROT_WRITE);
	} else if (!strcmp(how, "drop")) {
		madvise(at, size, MADV_DONTNEED);
		pause_us(300);
		for (size_t n = 0; n < size; n += PAGE)
			seen += at[n];
	} else {
		mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, aside);
		pause_us(300);
		mremap(aside, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at);
	}
	taken++;
}

static void *thief(void *how)
{
	unsigned int seed = 1;
	while (!lowest)
		pause_us(1000);
	char *first = (char *)(((unsigned long)lowest + 4 * PAGE) & -PAGE);
	size_t pages = (stack + SIZE - first) / PAGE - 1;
	for (;;) {
		size_t at = rand_r(&seed) % pages, many = 1 + rand_r(&seed) % 2;
		if (at + many <= pages)
			take(how, first + at * PAGE, many * PAGE);
		pause_us(rand_r(&seed) % 600);
	}
	return NULL;
}

int main(int count, char **words)
{
	pthread_t thread, other;
	pthread_attr_t attributes;
	int file = memfd_create("stack", 0);
	if (count < 2 || file < 0 || ftruncate(file, SIZE))
		return 2;
	stack = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	aside = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED || aside == MAP_FAILED)
		return 2;
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, stack, SIZE);
	if (pthread_create(&thread, &attributes, run, NULL) || pthread_create(&other, NULL, thief, words[1]))
		return 2;
	alarm(60);
	puts("ready");
	fflush(stdout);
	for (;;) {
		sleep(1);
		printf("%lu %lu %lu\n", taken, wrong, rounds);
		fflush(stdout);
	}
}
