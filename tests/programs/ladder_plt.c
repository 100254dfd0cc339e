/* Calls through the PLT; with -z lazy each first call goes through _dl_runtime_resolve.

   ladder_plt once             each function once: every call is resolved
   ladder_plt climb SECONDS    for ever: calls, and callbacks out of the library */

#include "ladder.h"
#include "ladder_plt.h"

RUNG word back(word x)
{
	SPIN(x);
	return x + 2;
}

#define FAR_CALL(n)                                                                                                    \
	RUNG word near_##n(word x)                                                                                     \
	{                                                                                                              \
		word y = far_##n(x, back);                                                                             \
		double z = far_double_##n(1, 2, 3, 4, 5, 6, 7, (double)y);                                             \
		return y + (z > 2);                                                                                    \
	}
FAR_FUNCTIONS(FAR_CALL)

RUNG word round_trip(word x)
{
#define FAR_ADD(n) x += near_##n(x);
	FAR_FUNCTIONS(FAR_ADD)
	return x + far_outer(x);
}

int main(int argc, char **argv)
{
	volatile word x = round_trip(1);
	if (argc == 2)
		return 0;
	if (argc != 3)
		return 2;
	end_after(argv[2]);
	rounds = 3;
	say_ready();
	for (;;)
		x = round_trip(x);
}
