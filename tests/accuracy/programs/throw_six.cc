// Throws through six functions for ever: each has an object to destroy, so that the unwinder stops in each of them.

#include <cstdio>

static volatile int total;

struct Guard {
    int n;
    ~Guard() { total = total + n; }
};

#define LEVEL(n, next) \
    __attribute__((noinline)) static int level##n(int x) \
    { \
        Guard guard{n}; \
        int y = next(x + 1); \
        total = total + y; \
        return y + n; \
    }

__attribute__((noinline)) static int level6(int x)
{
    Guard guard{6};
    if (x >= 0)
        throw x;
    return x;
}
LEVEL(5, level6)
LEVEL(4, level5)
LEVEL(3, level4)
LEVEL(2, level3)
LEVEL(1, level2)

__attribute__((noinline)) static int attempt(int x)
{
    try {
        return level1(x);
    } catch (int y) {
        return y;
    }
}

int main()
{
    puts("ready");
    fflush(stdout);
    for (int i = 0;; i++)
        total = total + attempt(i & 7);
}
