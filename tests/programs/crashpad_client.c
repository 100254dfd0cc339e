/* Crashes, and has Crashpad's handler dump it: what Crashpad's client library does where the handler is started at the
   crash only (StartHandlerAtCrash), without that library.

   crashpad_client HANDLER DATABASE */

#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

/* ExceptionInformation of Crashpad's util/linux/exception_information.h */
static struct {
	uint64_t siginfo, context;
	int32_t thread;
} __attribute__((packed)) information;

static char **arguments;
static volatile int nowhere, standing;

static void on_crash(int number, siginfo_t *siginfo, void *context)
{
	char where[64], database[512];
	information.siginfo = (uint64_t)siginfo;
	information.context = (uint64_t)context;
	information.thread = syscall(SYS_gettid);
	snprintf(where, sizeof where, "--trace-parent-with-exception=%p", (void *)&information);
	snprintf(database, sizeof database, "--database=%s", arguments[2]);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	int child = fork();
	if (!child) {
		execl(arguments[1], arguments[1], where, database, "--no-rate-limit", (char *)0);
		_exit(9);
	}
	waitpid(child, 0, 0);
	_exit(128 + number);
}

KEEP int parked(int n)
{
	standing = 1;
	for (;;)
		pause();
	return n;
}

static void *thread_main(void *unused)
{
	return (void *)(long)(parked(0) + (unused != 0));
}

KEEP int crash_3(int n)
{
	volatile char pad[300];
	pad[n & 63] = 1;
	*(volatile int *)(long)nowhere = n;
	return n + pad[n & 63];
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
	struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO};
	pthread_t thread;
	arguments = argv;
	pthread_create(&thread, 0, thread_main, 0);
	while (!standing)
		usleep(1000);
	usleep(20000);
	sigaction(SIGSEGV, &action, 0);
	return crash_1(argc) + 1;
}
