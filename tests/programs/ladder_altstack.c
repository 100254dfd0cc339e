/* main stands on a ladder of 12 rungs, s_01 .. s_12, s_top; a timer's handler on its own stack interrupts it again and
   again, once all of them are there, and works for a while in handler_top. Any architecture.

   ladder_altstack spin SECONDS */

#include "ladder.h"

static volatile int stay = 1, at_top;

RUNG word s_top(word x)
{
	at_top = 1;
	do {
		SPIN(x);
	} while (stay);
	return x;
}

RUNG_PLAIN(s_12, s_top)
RUNG_FIXED(s_11, s_12, 3)
RUNG_SAVED(s_10, s_11)
RUNG_RBP(s_09, s_10)
RUNG_ALLOCA(s_08, s_09)
RUNG_VLA(s_07, s_08)
RUNG_EARLY(s_06, s_07)
RUNG_PLAIN(s_05, s_06)
RUNG_FIXED(s_04, s_05, 300)
RUNG_SAVED(s_03, s_04)
RUNG_ALLOCA(s_02, s_03)
RUNG_PLAIN(s_01, s_02)

RUNG word handler_top(word x)
{
	for (volatile int turn = 0; turn < 1500000; turn++)
		x += turn;
	return x;
}

RUNG void handler(int signal_number)
{
	if (!at_top)
		return;
	volatile word x = handler_top(signal_number);
	(void)x;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	rounds = 50;
	end_after(argv[2]);
	stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
	if (sigaltstack(&other, 0) || sigaction(SIGUSR1, &action, 0))
		return 3;
	struct sigevent event;
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_SIGNAL;
	event.sigev_signo = SIGUSR1;
	struct itimerspec when = {{0, 10000000}, {0, 10000000}};
	timer_t timer;
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &when, 0))
		return 4;
	say_ready();
	volatile word x = s_01(1);
	(void)x;
	return 0;
}
