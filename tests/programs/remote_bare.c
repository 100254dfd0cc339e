/* The ladder of remote_ladder.h on a Cortex-M without an operating system: goes up and down for ever, with TICK
   interrupted by a timer.

   Its only unwind information is .ARM.exidx (-funwind-tables, no debug information). */

#include "remote_ladder.h"

extern word stack_top;
int main(void);

RUNG void reset(void)
{
	main();
	for (;;)
		;
}

/* The timer's interrupt: a ladder of its own, t_02 on t_01 on tick. */
RUNG word t_02(word x)
{
	for (int turn = 0; turn < 200; turn++) /* long enough that samples fall into it on a fast machine, too */
		SPIN(x);
	return x;
}

RUNG_SAVED(t_01, t_02)

RUNG void tick(void)
{
	sink = t_01(sink);
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
	[0] = &stack_top, [1] = (void *)reset, [15] = (void *)tick};

static void start_timer(void)
{
	volatile word *const control = (word *)0xE000E010;
	control[1] = 20000;
	control[2] = 0;
	control[0] = 7;
}

int main(void)
{
	volatile word x = 1;
	rounds = 400;
#ifdef TICK
	start_timer();
#else
	(void)start_timer;
#endif
	for (;;)
		x = r_01(x);
}

/* What the index names; nothing is ever thrown. */
void __aeabi_unwind_cpp_pr0(void)
{
}

void __aeabi_unwind_cpp_pr1(void)
{
}
