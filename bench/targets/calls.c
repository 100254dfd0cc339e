/* Calls of small functions that save every register and do next to nothing: most pcs lie in prologues and epilogues.
 *
 * gcc -O2 -fomit-frame-pointer -pthread -o calls calls.c
 * calls SECONDS  ->  {"work": rounds done}
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

#define SAVING __asm__ volatile("" ::: "rbx", "rbp", "r12", "r13", "r14", "r15")
#define LEVEL(name, callee)                                        \
    __attribute__((noipa)) static uint64_t name(uint64_t x) {      \
        SAVING;                                                    \
        x = callee(x + 1);                                         \
        SAVING;                                                    \
        return callee(x) + 1;                                      \
    }

__attribute__((noipa)) static uint64_t bottom(uint64_t x) {
    SAVING;
    return x + 1;
}
LEVEL(seventh, bottom)
LEVEL(sixth, seventh)
LEVEL(fifth, sixth)
LEVEL(fourth, fifth)
LEVEL(third, fourth)
LEVEL(second, third)
LEVEL(first, second)

int main(int argc, char **argv) {
    uint64_t end = now_ns() + (uint64_t)((argc > 1 ? atof(argv[1]) : 5) * 1e9), work = 0, x = 0;
    while (now_ns() < end) {
        for (int i = 0; i < 20; i++)
            x = first(x);
        work++;
    }
    printf("{\"work\": %llu, \"x\": %llu}\n", (unsigned long long)work, (unsigned long long)x);
    return 0;
}
