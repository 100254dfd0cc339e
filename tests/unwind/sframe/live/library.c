#include "ladder.h"

NOINLINE long lib_leaf(long n) {
  volatile long sum = 0;
  for (long i = 0; i < n % 64; i++) sum += i;
  return sum;
}

NOINLINE long lib_rung(long n, rung next) {
  volatile char room[200];
  room[n & 127] = (char)n;
  return next(n + 1) + room[n & 127];
}

NOINLINE long lib_fixed(long n, rung next) { /* frame pointer: a variable-length array */
  volatile char room[n + 32];
  room[n] = (char)n;
  return next(n + 1) + room[n];
}
