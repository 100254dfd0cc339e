/* A ladder of 12 rungs from r_01 (outermost) to r_12, on top of it r_top: for any architecture, with or without a C
   library. Every rung has another shape of frame, and work to do after its call. */

#ifndef REMOTE_LADDER_H
#define REMOTE_LADDER_H

typedef unsigned long word;

/* -DCFI_SECTIONS='".eh_frame, .debug_frame"': all of these tables in one file. */
#ifdef CFI_SECTIONS
__asm__(".cfi_sections " CFI_SECTIONS);
#endif

#define RUNG __attribute__((noipa))

static volatile word rounds = 20;
static volatile word sink;

#define SPIN(x)                                                                                                        \
	for (volatile word turn = rounds; turn; turn--)                                                                 \
	(x) = (x) * 3 + 1

#define RUNG_PLAIN(name, next)                                                                                         \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		word y = next(x + 1);                                                                                  \
		SPIN(y);                                                                                               \
		return y ^ 1;                                                                                          \
	}

#define RUNG_FIXED(name, next, words)                                                                                  \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		volatile word pad[words];                                                                              \
		pad[0] = x;                                                                                            \
		pad[(words) - 1] = x + 1;                                                                              \
		SPIN(x);                                                                                               \
		word y = next(x);                                                                                      \
		SPIN(y);                                                                                               \
		return y + pad[0] + pad[(words) - 1];                                                                  \
	}

/* Many values live across the call: callee-saved registers are stored. */
#define RUNG_SAVED(name, next)                                                                                         \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		word a = sink, b = sink, c = sink, d = sink, e = sink, f = sink;                                       \
		word y = next(x);                                                                                      \
		SPIN(y);                                                                                               \
		sink = a, sink = b, sink = c, sink = d, sink = e, sink = f;                                            \
		return y + 1;                                                                                          \
	}

#define RUNG_VLA(name, next)                                                                                           \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		volatile word pad[1 + (x & 15)];                                                                       \
		pad[x & 15] = x;                                                                                       \
		SPIN(x);                                                                                               \
		word y = next(x);                                                                                      \
		return y + pad[0];                                                                                     \
	}

#define RUNG_EARLY(name, next)                                                                                         \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		if (x == 0)                                                                                            \
			return 7;                                                                                      \
		word y = next(x);                                                                                      \
		if (y == 3)                                                                                            \
			return x;                                                                                      \
		volatile word pad[9];                                                                                  \
		pad[x & 7] = 1;                                                                                        \
		pad[y & 7] = y;                                                                                        \
		SPIN(y);                                                                                               \
		return y + pad[x & 7];                                                                                 \
	}

#define RUNG_WIDE(name, wide)                                                                                          \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		word y = wide(x, 2, 3, 4, 5, 6, x + 7, x + 8, x + 9);                                                  \
		SPIN(y);                                                                                               \
		return y + x;                                                                                          \
	}

#define RUNG_NINE(wide, next)                                                                                          \
	RUNG word wide(word x, word b, word c, word d, word e, word f, word g, word h, word i)                         \
	{                                                                                                              \
		word y = next(x + b + c);                                                                              \
		SPIN(y);                                                                                               \
		return y + d + e + f + g + h + i;                                                                      \
	}

RUNG word r_top(word x)
{
	SPIN(x);
	return x;
}

RUNG_FIXED(r_12, r_top, 1)
RUNG_PLAIN(r_11, r_12)
RUNG_SAVED(r_10, r_11)
RUNG_VLA(r_09, r_10)
RUNG_EARLY(r_08, r_09)
RUNG_NINE(r_07, r_08)
RUNG_WIDE(r_06, r_07)
RUNG_FIXED(r_05, r_06, 150)
RUNG_SAVED(r_04, r_05)
RUNG_VLA(r_03, r_04)
RUNG_PLAIN(r_02, r_03)
RUNG_FIXED(r_01, r_02, 5)

#endif
