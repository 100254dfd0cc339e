/* Crashes: main by a store to address 0 at the end of a chain of calls, while two threads stand in theirs.

   core_threads            crashes
   core_threads wait       says "ready" instead and stands still (for debuggers that write cores of living processes) */

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

static volatile int standing, nowhere, stay;

KEEP int parked_3(int n)
{
	__atomic_add_fetch(&standing, 1, __ATOMIC_SEQ_CST);
	for (;;)
		pause();
	return n;
}

KEEP int parked_2(int n)
{
	volatile char pad[64];
	pad[n & 63] = 1;
	return parked_3(n) + pad[n & 63];
}

KEEP int parked_1(int n)
{
	return parked_2(n + 1) + 1;
}

static void *thread_main(void *n)
{
	return (void *)(long)parked_1((int)(long)n);
}

KEEP int crash_4(int n)
{
	while (stay)
		pause();
	*(volatile int *)(long)nowhere = n;
	return n;
}

KEEP int crash_3(int n)
{
	volatile char pad[300];
	pad[n & 63] = 1;
	return crash_4(n) + pad[n & 63];
}

KEEP int crash_2(int n)
{
	volatile char *pad = __builtin_alloca(16 + n * 16);
	pad[0] = 1;
	return crash_3(n) + pad[0];
}

KEEP int crash_1(int n)
{
	return crash_2(n + 1) + 1;
}

int main(int argc, char **argv)
{
	pthread_t thread[2];
	(void)argv;
	for (long i = 0; i < 2; i++)
		pthread_create(&thread[i], 0, thread_main, (void *)i);
	while (standing < 2)
		usleep(1000);
	usleep(20000);
	stay = argc > 1;
	if (stay) {
		puts("ready");
		fflush(stdout);
	}
	return crash_1(argc) + 1;
}
