// Exceptions thrown and caught through templates: Step<N>::up() calls Step<N - 1>, the innermost throws or stands.
//
// ladder_throw once            every kind of throw once
// ladder_throw climb SECONDS   for ever

#include "ladder.h"

#include <stdexcept>
#include <string>

namespace tower {

static volatile int kind;

struct Guard {
	word &count;
	RUNG ~Guard() { count++; }
};

struct Odd : std::runtime_error {
	using std::runtime_error::runtime_error;
};

template <int N> struct Step {
	RUNG static word up(word x)
	{
		Guard guard{x};
		volatile word pad[N + 1];
		pad[N] = x;
		word y = Step<N - 1>::up(x + 1);
		SPIN(y);
		return y + pad[N];
	}
};

template <> struct Step<0> {
	RUNG static word up(word x)
	{
		SPIN(x);
		switch (kind) {
		case 1:
			throw 42;
		case 2:
			throw Odd("odd");
		case 3:
			throw std::string("a string long enough not to fit into the object itself");
		}
		return x;
	}
};

template <typename Thrown> RUNG word attempt(int which)
{
	kind = which;
	try {
		return Step<4>::up(1);
	} catch (const Thrown &) {
		return 2;
	}
}

/* Caught, and thrown on, at every step. */
template <int N> RUNG word relay(word x)
{
	try {
		if constexpr (N == 0)
			throw Odd("again");
		else
			return relay<N - 1>(x) + 1;
	} catch (const Odd &) {
		SPIN(x);
		if constexpr (N == 2)
			return x;
		else
			throw;
	}
}

} // namespace tower

RUNG static word all_kinds()
{
	word y = tower::attempt<std::exception>(0);
	y += tower::attempt<int>(1);
	y += tower::attempt<std::exception>(2);
	y += tower::attempt<std::string>(3);
	y += tower::relay<2>(y);
	return y;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "once")) {
		volatile word y = all_kinds();
		(void)y;
		return 0;
	}
	if (argc != 3)
		return 2;
	end_after(argv[2]);
	rounds = 20;
	say_ready();
	volatile word total = 0;
	for (;;)
		total += all_kinds();
}
