/* Coroutines by makecontext(3), each on a stack of its own, that give way to each other after some work.

   ladder_contexts spin SECONDS */

#include "ladder.h"
#include <ucontext.h>

#define COROUTINES 4
#define STACK (64 << 10)

static ucontext_t scheduler, coroutines[COROUTINES];

RUNG word work(word x)
{
	for (volatile int turn = 0; turn < 1000000; turn++)
		x += turn;
	return x;
}

RUNG_PLAIN(step, work)

RUNG void coroutine(int number)
{
	for (volatile word x = number;;) {
		x = step(x);
		swapcontext(&coroutines[number], &scheduler);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	end_after(argv[2]);
	for (int n = 0; n < COROUTINES; n++) {
		getcontext(&coroutines[n]);
		coroutines[n].uc_stack.ss_sp = malloc(STACK);
		coroutines[n].uc_stack.ss_size = STACK;
		coroutines[n].uc_link = &scheduler;
		makecontext(&coroutines[n], (void (*)(void))coroutine, 1, n);
	}
	say_ready();
	for (int n = 0;; n = (n + 1) % COROUTINES)
		swapcontext(&scheduler, &coroutines[n]);
}
