// Frames of every shape that a compiler makes of C++, and exceptions through them.
//   arm-linux-gnueabihf-g++ [-marm|-mthumb] -O2 -g -funwind-tables -static shapes.cpp -o shapes
// -funwind-tables, or functions that cannot throw are marked CANTUNWIND.
#include <alloca.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noclone))
#endif

volatile int sink;
volatile double dsink;
static int depth_limit = 6;

struct Guard {
    int id;
    explicit Guard(int i) : id(i) { sink += id; }
    NOINLINE ~Guard() { sink -= id; }
};

NOINLINE int leaf(int n) { return n * 3 + sink; }

NOINLINE int plain(int n) { return leaf(n) + leaf(n + 1); }

NOINLINE int many_registers(int a, int b, int c, int d) {
    int e = leaf(a), f = leaf(b), g = leaf(c), h = leaf(d), i = leaf(a + b), j = leaf(c + d);
    return plain(a) + e + f * g + h * i + j + b + c + d;
}

NOINLINE double floats(double a, double b, int n) {
    double c = a * b, d = a + b, e = a - b, f = a * 2, g = b * 3, h = a * 5;
    sink += leaf(n);
    c += d * e;
    sink += plain(n);
    return c + d + e + f * g + h * dsink;
}

NOINLINE int large_frame(int n) {
    char buffer[1600];
    memset(buffer, n, sizeof buffer);
    return plain(buffer[n & 1023]) + buffer[7];
}

NOINLINE int huge_frame(int n) {
    volatile char buffer[9000];
    buffer[n & 0x1fff] = (char)n;
    return leaf(buffer[n & 0x1fff]);
}

NOINLINE int with_alloca(int n) {
    char *p = (char *)alloca((size_t)(n & 63) + 8);
    memset(p, n, (size_t)(n & 63) + 8);
    return plain(p[3]) + leaf(p[4]);
}

NOINLINE int variadic(int count, ...) {
    va_list list;
    va_start(list, count);
    int sum = 0;
    for (int i = 0; i < count; i++) sum += leaf(va_arg(list, int));
    va_end(list);
    return sum;
}

NOINLINE int stack_arguments(int a, int b, int c, int d, int e, int f, int g) {
    return leaf(a + b) + leaf(c + d) + e + f + g;
}

NOINLINE int tail(int n) { return many_registers(n, n + 1, n + 2, n + 3); }

NOINLINE int recurse(int n) { return n <= 0 ? plain(1) : recurse(n - 1) + leaf(n); }

NOINLINE int thrower(int n) {
    Guard guard(n);
    if (n == 0) throw 42;
    return thrower(n - 1) + leaf(n);
}

NOINLINE int catcher(int n) {
    Guard outer(7);
    try {
        Guard inner(8);
        return thrower(n);
    } catch (int value) {
        return value + plain(n);
    }
}

NOINLINE int through_pointer(int (*f)(int), int n) { return f(n) + 1; }

struct Base {
    virtual ~Base() {}
    virtual int run(int n) = 0;
};
struct Derived : Base {
    NOINLINE int run(int n) override { return tail(n) + stack_arguments(1, 2, 3, 4, 5, 6, n); }
};

NOINLINE Base *make(int n) {
    static Derived one, two;
    return n & 1 ? &one : &two;
}

extern "C" NOINLINE int work(int rounds) {
    int total = 0;
    for (int i = 0; i < rounds; i++) {
        total += plain(i) + tail(i) + large_frame(i) + huge_frame(i) + with_alloca(i) + variadic(3, i, 2, 3);
        total += recurse(depth_limit) + make(i)->run(i) + through_pointer(with_alloca, i);
        dsink += floats(i, 2.5, i);
        total += catcher(i % 3);
    }
    return total;
}

int main() { return work(2) & 1; }
