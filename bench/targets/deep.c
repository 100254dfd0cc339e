/* A recursion DEPTH frames deep with work at its bottom and on the way.
 *
 * gcc -O2 -fomit-frame-pointer -o deep deep.c
 * deep SECONDS DEPTH  ->  {"work": rounds done}
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t end_ns, work;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

__attribute__((noinline)) static uint64_t down(int left, uint64_t x) {
    volatile char local[24];
    local[0] = (char)x;
    if (left)
        return down(left - 1, x + 1) + local[0];
    while (now_ns() < end_ns) {
        for (int i = 0; i < 4000; i++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        work++;
    }
    return x + local[0];
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 5;
    int depth = argc > 2 ? atoi(argv[2]) : 2000;
    end_ns = now_ns() + (uint64_t)(seconds * 1e9);
    volatile uint64_t keep = down(depth, 88172645463325252ull);
    (void)keep;
    printf("{\"work\": %llu}\n", (unsigned long long)work);
    return 0;
}
