/* Functions whose rows are not the usual ones: realigned frames (DRAP), alloca, several epilogues, deep spills.
   Needs no library, so that it builds for every target. Linked, never run.
   Build: gcc -O2 -mavx -nostdlib -nostartfiles -fPIE -static-pie -o cfi_frames cfi_frames.c */

#include <stdarg.h>

typedef float vector __attribute__((vector_size(32)));
volatile int sink;
vector global;

__attribute__((noinline)) void call(void) { sink++; }
__attribute__((noinline)) void use(vector *v) { sink += (int)(*v)[0]; }

__attribute__((noinline)) int realigned(int n, ...) {
    va_list list;
    int sum = 0;
    vector v = global;
    va_start(list, n);
    use(&v);
    for (int i = 0; i < n; i++) sum += va_arg(list, int);
    call();
    va_end(list);
    return sum + (int)v[0];
}

__attribute__((noinline)) int with_alloca(int n) {
    vector v = global;
    volatile char *bytes = __builtin_alloca(n);
    for (int i = 0; i < n; i++) bytes[i] = 1;
    use(&v);
    call();
    return bytes[0];
}

__attribute__((noinline)) long spills(long a, long b, long c, long d, long e, long f, long g, long h) {
    long x = a * b, y = c * d, z = e * f, w = g * h;
    call();
    long q = a - b;
    call();
    if (q > 3) return spills(x, y, z, w, q, 1, 2, 3) + x + y + z + w;
    call();
    return x ^ y ^ z ^ w;
}

int _start(void) { return realigned(3, 1, 2, 3) + with_alloca(4) + (int)spills(1, 2, 3, 4, 5, 6, 7, 8); }
