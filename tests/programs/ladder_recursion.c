/* A recursion that is deeper than what is copied of a stack at one stop, on a thread with a stack of 256 MiB.

   ladder_recursion stay DEPTH SECONDS      goes down once, works at the bottom, a few frames up and down
   ladder_recursion travel DEPTH SECONDS    goes down and up, again and again
   ladder_recursion origins DEPTH SECONDS   goes down from left() and from right() in turn; works in at_left() or at_right()
   ladder_recursion sleep DEPTH SECONDS     goes down once and sleeps there */

#include <pthread.h>
#include <unistd.h>

#include "ladder.h"

static char mode;
static word depth;
static volatile word sink;

RUNG void work(word n)
{
	for (word i = 0; i < n; i++)
		sink += i;
}

RUNG void at_left(void)
{
	work(30000000);
	sink++;
}

RUNG void at_right(void)
{
	work(30000000);
	sink++;
}

RUNG void near_bottom(word n)
{
	if (n > 0)
		near_bottom(n - 1);
	work(500);
	sink++;
}

RUNG void bottom(int origin)
{
	if (mode == 'o') {
		(origin ? at_right : at_left)();
		sink++;
		return;
	}
	say_ready();
	for (word n = 0;; n = (n + 1) % 30) {
		if (mode == 's')
			near_bottom(n);
		else
			sleep(1);
	}
}

RUNG word down(word left, int origin)
{
	volatile word pad[3];
	pad[0] = left;
	if (left > 0)
		sink += down(left - 1, origin);
	else if (mode != 't')
		bottom(origin);
	sink++;
	return pad[0];
}

RUNG void left(void)
{
	sink += down(depth, 0);
	sink++;
}

RUNG void right(void)
{
	sink += down(depth, 1);
	sink++;
}

static void *run(void *nothing)
{
	if (mode == 't' || mode == 'o')
		say_ready();
	for (;;) {
		left();
		if (mode == 'o')
			right();
		sink++;
	}
	return nothing;
}

int main(int argc, char **argv)
{
	pthread_attr_t attributes;
	pthread_t thread;
	if (argc < 4)
		return 2;
	mode = !strcmp(argv[1], "sleep") ? 'z' : argv[1][0];
	depth = (word)atol(argv[2]);
	end_after(argv[3]);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256ul << 20);
	if (pthread_create(&thread, &attributes, run, NULL))
		return 3;
	pthread_join(thread, NULL);
	return 0;
}
