/* A signal handler whose trampoline has no unwind table: the restorer is ours, without .cfi directives.

   main raise_it handler: says "ready" inside the handler and sleeps there. */

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct kernel_sigaction {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	unsigned long mask;
};

void bare_restorer(void);
__asm__(".pushsection .text\n"
	".p2align 4\n"
	"\tret\n"
	".globl bare_restorer\n"
	".type bare_restorer, @function\n"
	"bare_restorer:\n"
	"\tmov $15, %rax\n"
	"\tsyscall\n"
	".size bare_restorer, .-bare_restorer\n"
	".popsection\n");

__attribute__((noinline)) void handler(int number)
{
	(void)number;
	puts("ready");
	fflush(stdout);
	sleep(60);
	_exit(0);
}

__attribute__((noinline)) int raise_it(int number)
{
	return (int)syscall(SYS_tgkill, getpid(), getpid(), number) + 1;
}

int main(void)
{
	struct kernel_sigaction action;
	memset(&action, 0, sizeof action);
	action.handler = handler;
	action.flags = 0x04000000; /* SA_RESTORER */
	action.restorer = bare_restorer;
	syscall(SYS_rt_sigaction, SIGUSR1, &action, 0, 8);
	return raise_it(SIGUSR1) + 1;
}
