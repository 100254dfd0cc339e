/* Loads a library when SIGUSR1 comes, and stays in it: remote_dlopen SECONDS LIBRARY; its ladder starts at one_01. */

#include "ladder.h"

#include <dlfcn.h>

static volatile sig_atomic_t go_on;

static void on_user(int number)
{
	(void)number;
	go_on = 1;
}

RUNG word before(word x)
{
	while (!go_on)
		x = x * 3 + 1;
	return x;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	end_after(argv[1]);
	signal(SIGUSR1, on_user);
	say_ready();
	volatile word x = before(1);
	void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return 4;
	word (*first)(word) = (word (*)(word))dlsym(library, "one_01");
	rounds = 300;
	for (;;)
		x = first(x);
}
