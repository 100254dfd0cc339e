/* A timer's signal handler on an alternate stack interrupts leaves written in assembly (ladder_leaf.S). The timer is set
   anew after each signal: however slow the machine is, there is time between one handler and the next.

   ladder_signal once            one signal on the alternate stack, one on the same stack, one longjmp out of a handler
   ladder_signal spin SECONDS    main loops in leaves, the handler takes about half of the time
   Stack while handling: handler_top handler <restorer> leaf ladder rungs leaves main */

#include "ladder.h"

#include <setjmp.h>
#include <sys/time.h>

word leaf_bare(word);
word leaf_moving(word);
word leaf_r11(word);
word leaf_deref(word);
word leaf_popped(word);

static volatile int jump_out;
static volatile int stay;
static volatile int over; /* a handler has ended */
static volatile word handler_rounds = 1;
static sigjmp_buf out;

RUNG word handler_top(word x)
{
	for (volatile word turn = handler_rounds; turn; turn--)
		x = x * 3 + 1;
	return x;
}

RUNG void handler(int number, siginfo_t *info, void *context)
{
	volatile word pad[20];
	pad[3] = handler_top((word)number);
	pad[4] = pad[3];
	(void)info;
	(void)context;
	over = 1;
	if (jump_out)
		siglongjmp(out, 1);
}

#define LOOPS (stay ? 20000 : 5)

RUNG word s_top(word x)
{
	x += leaf_bare(LOOPS);
	x += leaf_moving(LOOPS);
	x += leaf_r11(LOOPS);
	x += leaf_deref(LOOPS);
	x += leaf_popped(LOOPS);
	return x;
}

LADDER(s)

RUNG word same_stack(word x)
{
	raise(SIGUSR2);
	SPIN(x);
	return x + 1;
}

RUNG word jumped(volatile word x)
{
	if (sigsetjmp(out, 1) == 0) {
		jump_out = 1;
		raise(SIGUSR1);
	}
	jump_out = 0;
	SPIN(x);
	return x + 1;
}

int main(int argc, char **argv)
{
	static char other_stack[65536];
	stack_t alternate = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	if (argc < 2 || sigaltstack(&alternate, 0) || sigaction(SIGPROF, &action, 0) || sigaction(SIGUSR1, &action, 0))
		return 2;
	action.sa_flags = SA_SIGINFO;
	if (sigaction(SIGUSR2, &action, 0))
		return 2;
	volatile word x = 0;
	if (!strcmp(argv[1], "once")) {
		raise(SIGPROF);
		x = s_01(1) + same_stack(2) + jumped(3);
		(void)x;
		return 0;
	}
	if (argc != 3)
		return 2;
	stay = 1;
	end_after(argv[2]);
	handler_rounds = 1000000;
	struct itimerval soon = {{0, 0}, {0, 4000}};
	setitimer(ITIMER_PROF, &soon, 0);
	say_ready();
	for (;;) {
		x = s_01(x);
		if (over) {
			over = 0;
			setitimer(ITIMER_PROF, &soon, 0);
		}
	}
}
