/* c_deep_sleepers COUNT: COUNT threads that sleep forever, each with 900 KiB of stack. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *sleep_deep(void *ready)
{
	volatile char room[900 << 10];
	for (unsigned long at = 0; at < sizeof room; at += 1024)
		room[at] = 1;
	pthread_barrier_wait(ready);
	while (room[0])
		pause();
	return NULL;
}

int main(int count, char **words)
{
	pthread_barrier_t ready;
	int threads = count > 1 ? atoi(words[1]) : 1;
	alarm(600);
	pthread_barrier_init(&ready, NULL, threads + 1);
	for (int n = 0; n < threads; n++) {
		pthread_t thread;
		pthread_create(&thread, NULL, sleep_deep, &ready);
	}
	pthread_barrier_wait(&ready);
	usleep(100000);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
