/* Leaves six functions by longjmp(3) for ever. */

#include <setjmp.h>
#include <stdio.h>

static jmp_buf out;
static volatile int total;

#define LEVEL(n, next) \
    __attribute__((noinline)) static int level##n(int x) \
    { \
        int y = next(x + 1); \
        total = total + y; \
        return y + n; \
    }

__attribute__((noinline)) static int level6(int x)
{
    if (x >= 0)
        longjmp(out, 1);
    return x;
}
LEVEL(5, level6)
LEVEL(4, level5)
LEVEL(3, level4)
LEVEL(2, level3)
LEVEL(1, level2)

__attribute__((noinline)) static int attempt(int x)
{
    if (setjmp(out))
        return x;
    return level1(x);
}

int main(void)
{
    puts("ready");
    fflush(stdout);
    for (int i = 0;; i++)
        total = total + attempt(i & 7);
}
