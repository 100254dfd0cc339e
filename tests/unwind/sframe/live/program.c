#include "ladder.h"

#ifndef ROUNDS
#define ROUNDS (1L << 62)
#endif

static NOINLINE long work(long n) { /* samples fall here, into the library's leaf and the PLT on the way to it */
  volatile long sum = n;
  for (long round = 0; round < ROUNDS; round++) sum += lib_leaf(sum);
  return sum;
}

static NOINLINE long deep(long n) { return n ? deep(n - 1) + 1 : work(n) + 1; }
static NOINLINE long rung4(long n) { return deep(20) + n; }
static NOINLINE long rung3(long n) { return lib_fixed(n, rung4) + 1; }
static NOINLINE long rung2(long n) {
#ifdef DRAP /* only SFrame V3 can say it */
  volatile double wide[8] __attribute__((aligned(64)));
  wide[n & 7] = n;
  return lib_rung(n, rung3) + (long)wide[n & 7];
#else
  return lib_rung(n, rung3) + n;
#endif
}
static NOINLINE long rung1(long n) { return lib_rung(n, rung2) + 3; }

NOINLINE long run(long n) { return rung1(n) + 1; }
