/* Four threads, each on its own ladder of 30 rungs: a_01 .. a_30 up to a_top, and so on for b, c, d.

   ladder once              main goes up ladder a and down again, and the program ends (for the oracle)
   ladder spin SECONDS      every thread stands on its top rung and counts: one stack a thread, always
   ladder climb SECONDS     every thread goes up and down for ever: the stacks are the ladder's beginnings

   Built many ways: with and without symbols, with frame pointers only, with .debug_frame only, static, static-pie. */

#include "ladder.h"

#include <pthread.h>

static volatile int stay;
static volatile int standing;

#define TOP(p)                                                                                                         \
	RUNG word p##_top(word x)                                                                                      \
	{                                                                                                              \
		if (stay)                                                                                              \
			__atomic_add_fetch(&standing, 1, __ATOMIC_SEQ_CST);                                            \
		do {                                                                                                   \
			SPIN(x);                                                                                       \
		} while (stay);                                                                                        \
		return x;                                                                                              \
	}

#define THREAD(p)                                                                                                      \
	TOP(p)                                                                                                         \
	LADDER(p)                                                                                                      \
	RUNG void *p##_thread(void *unused)                                                                            \
	{                                                                                                              \
		(void)unused;                                                                                          \
		volatile word x = 1;                                                                                   \
		for (;;)                                                                                               \
			x = p##_01(x);                                                                                 \
		return 0;                                                                                              \
	}

THREAD(a)
THREAD(b)
THREAD(c)
THREAD(d)

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "once")) {
		volatile word x = a_01(1);
		(void)x;
		return 0;
	}
	if (argc != 3)
		return 2;
	stay = !strcmp(argv[1], "spin");
	rounds = 50;
	end_after(argv[2]);
	void *(*const starts[])(void *) = {a_thread, b_thread, c_thread, d_thread};
	pthread_t thread;
	for (int i = 0; i < 4; i++)
		if (pthread_create(&thread, 0, starts[i], 0))
			return 3;
	while (stay && standing < 4)
		usleep(1000);
	say_ready();
	pthread_join(thread, 0);
	return 0;
}
