/* Recursion: down() DEPTH times on a small frame (-DPAD=0: 20,000 frames stay below 1 MiB), then deep_top().

   ladder_deep once [DEPTH]
   ladder_deep spin SECONDS [DEPTH] */

#include "ladder.h"

#ifndef PAD
#define PAD 0
#endif

static volatile int stay;

RUNG word deep_top(word x)
{
	if (stay)
		say_ready();
	do {
		SPIN(x);
	} while (stay);
	return x;
}

RUNG word down(word left)
{
#if PAD
	volatile word pad[PAD];
	pad[0] = left;
#endif
	word y = left > 1 ? down(left - 1) : deep_top(left);
	__asm__ volatile("" : "+r"(y)); /* or the compiler makes a loop of it */
#if PAD
	y += pad[0];
#endif
	return y * 5 + left;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	stay = !strcmp(argv[1], "spin");
	if (stay)
		end_after(argv[2]);
	rounds = stay ? 50 : 1;
	const char *depth = argc > 2 + stay ? argv[2 + stay] : "20000";
	volatile word x = down((word)atol(depth));
	(void)x;
	return 0;
}
