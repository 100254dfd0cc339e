/* Two libraries are loaded and unloaded in turn, mostly at the same addresses, and called in between.

   ladder_dlopen once ONE.so OTHER.so
   ladder_dlopen climb SECONDS ONE.so OTHER.so [ROUNDS]
   Stack: PREFIX_top PREFIX_30 .. PREFIX_01 enter visit main */

#include "ladder.h"

#include <dlfcn.h>

RUNG word enter(word (*first)(word), word x)
{
	word y = first(x);
	__asm__ volatile("" : "+r"(y));
	return y;
}

RUNG word visit(const char *path, const char *symbol)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		_exit(4);
	word (*first)(word) = (word (*)(word))dlsym(library, symbol);
	word x = 1;
	for (volatile word turn = rounds; turn; turn--)
		x = enter(first, x);
	if (dlclose(library))
		_exit(5);
	return x;
}

int main(int argc, char **argv)
{
	volatile word x = 0;
	if (argc == 4) {
		x = visit(argv[2], "one_01") + visit(argv[3], "other_01");
		return 0;
	}
	if (argc < 5)
		return 2;
	end_after(argv[2]);
	rounds = 4000; /* some milliseconds, nearly all of them in the library */
	say_ready();
	for (;;) {
		x += visit(argv[3], "one_01");
		x += visit(argv[4], "other_01");
	}
}
