/* Crashes in a signal handler on a stack of its own, which interrupted raise() under a recursion.

   core_signal DEPTH */

#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>

#define KEEP __attribute__((noinline, noclone))
#define SIZE 65536

static volatile int nowhere;

KEEP int crash_leaf(int n)
{
	*(volatile int *)(long)nowhere = n;
	return n;
}

KEEP int in_handler(int n)
{
	volatile char pad[200];
	pad[n & 63] = 1;
	return crash_leaf(n) + pad[n & 63];
}

static void handler(int signal)
{
	in_handler(signal);
}

KEEP int raise_3(int n)
{
	raise(SIGUSR1);
	return n + 1;
}

KEEP int raise_2(int n)
{
	volatile char *pad = __builtin_alloca(16 + n * 16);
	pad[0] = 1;
	return raise_3(n) + pad[0];
}

KEEP int raise_1(int n)
{
	return raise_2(n + 1) + 1;
}

KEEP int down(int n)
{
	volatile char pad[100];
	pad[n & 63] = 1;
	return n ? down(n - 1) + pad[n & 63] : raise_1(n) + 1;
}

int main(int argc, char **argv)
{
	struct sigaction action = {0};
	stack_t stack = {0};
	action.sa_handler = handler;
	action.sa_flags = SA_ONSTACK;
	stack.ss_size = SIZE;
	stack.ss_sp = malloc(SIZE);
	sigaltstack(&stack, 0);
	sigaction(SIGUSR1, &action, 0);
	return down(argc > 1 ? atoi(argv[1]) : 0) + 1;
}
