/* Run by an LLVM JIT: thirty frames deep, of odd sizes and without frame pointers. */
#include <stdio.h>

static volatile long sink;

__attribute__((noinline)) static long leaf(long n)
{
    long room[5];
    for (long i = 0; i < 20000; i++) {
        room[i % 5] = i * n;
        sink += room[(i + 3) % 5];
    }
    return sink;
}

__attribute__((always_inline)) static inline long inlined(long n)
{
    return leaf(n) + 1;
}

__attribute__((noinline)) static long ladder(long n, long depth)
{
    if (depth > 0)
        return ladder(n + 1, depth - 1) + depth;
    return inlined(n) * 3;
}

__attribute__((noinline)) static long outer(long n)
{
    return ladder(n, 30) ^ n;
}

int main(void)
{
    puts("ready");
    fflush(stdout);
    for (long n = 0;; n++)
        sink += outer(n);
}
