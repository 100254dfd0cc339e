/* The ladder of remote_ladder.h on a Cortex-M without an operating system: goes up and down for ever.

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

__attribute__((section(".vectors"), used)) static void *const vectors[] = {&stack_top, (void *)reset};

int main(void)
{
	volatile word x = 1;
	rounds = 400;
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
