/* A ladder of calls that crosses between program and library; no libc, so SFrame is the only table on the way. */
typedef long (*rung)(long);
extern long lib_rung(long n, rung next), lib_leaf(long n), lib_fixed(long n, rung next);
#define NOINLINE __attribute__((noinline, noclone))
