/*
 * Two locks with known hold times: of "long" lock_long is held for 20 ms and then left alone for 5, of "short" lock_short
 * for 4 ms and 1. Two threads take each. Each empty line on stdin is answered by how long each thread has waited for its
 * lock, by its own clock: "name nanoseconds times", then "end".
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

static pthread_mutex_t lock_long = PTHREAD_MUTEX_INITIALIZER, lock_short = PTHREAD_MUTEX_INITIALIZER;

struct taker {
	const char *name;
	pthread_mutex_t *lock;
	long held_us, rest_us;
	volatile unsigned long long waited_ns, times;
};

static unsigned long long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void nap(long us)
{
	struct timespec time = {0, us * 1000};
	nanosleep(&time, 0);
}

__attribute__((noinline)) void wait_for_it(struct taker *taker)
{
	unsigned long long began = now();
	pthread_mutex_lock(taker->lock);
	taker->waited_ns += now() - began;
	taker->times += 1;
}

__attribute__((noinline)) void let_it_go(struct taker *taker)
{
	pthread_mutex_unlock(taker->lock);
	__asm__ volatile("");
}

__attribute__((noinline)) void hold_it(struct taker *taker)
{
	nap(taker->held_us);
	let_it_go(taker);
	__asm__ volatile("");
}

static void *take(void *argument)
{
	struct taker *taker = argument;
	prctl(PR_SET_NAME, taker->name);
	for (;;) {
		wait_for_it(taker);
		hold_it(taker);
		nap(taker->rest_us);
	}
	return 0;
}

int main(void)
{
	static struct taker takers[] = {
		{"long_a", &lock_long, 20000, 5000}, {"long_b", &lock_long, 20000, 5000},
		{"short_a", &lock_short, 4000, 1000}, {"short_b", &lock_short, 4000, 1000},
	};
	pthread_t thread;
	for (int n = 0; n < 4; n++)
		pthread_create(&thread, 0, take, &takers[n]);
	printf("locks %p %p\nready\n", (void *)&lock_long, (void *)&lock_short);
	fflush(stdout);
	while (getchar() != EOF) {
		for (int n = 0; n < 4; n++)
			printf("%s %llu %llu\n", takers[n].name, takers[n].waited_ns, takers[n].times);
		printf("end\n");
		fflush(stdout);
	}
	return 0;
}
