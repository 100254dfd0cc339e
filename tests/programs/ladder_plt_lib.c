/* libladder_plt.so: functions that call back, and call each other through their own PLT. */

#include "ladder.h"
#include "ladder_plt.h"

#define FAR_DEFINE(n)                                                                                                  \
	RUNG word far_##n(word x, word (*back)(word))                                                                  \
	{                                                                                                              \
		volatile word pad[2 + 0x##n] = {x};                                                                    \
		word y = back(x);                                                                                      \
		SPIN(y);                                                                                               \
		return y + pad[0];                                                                                     \
	}                                                                                                              \
	RUNG double far_double_##n(double a, double b, double c, double d, double e, double f, double g, double h)     \
	{                                                                                                              \
		return a + b * c - d * e + f * g - h;                                                                  \
	}
FAR_FUNCTIONS(FAR_DEFINE)

static word nothing(word x)
{
	return x + 1;
}

RUNG word far_outer(word x)
{
	word y = far_01(x, nothing);
	SPIN(y);
	return y ^ far_02(y, nothing);
}
