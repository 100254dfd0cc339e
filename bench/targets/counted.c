/* Threads that run, or sleep, until the process is killed.
 *
 * gcc -O2 -g -fomit-frame-pointer -pthread -o counted counted.c
 * counted FILE INDEX BUSY SLEEPERS: run one busy thread if BUSY is 1, and SLEEPERS sleeping threads. The 64-bit number
 * at INDEX in FILE counts the work that was done.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile uint64_t *done;

__attribute__((noinline)) static uint64_t leaf(uint64_t x) {
    for (int i = 0; i < 4000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    (*done)++;
    return x;
}

#define RUNG(n, next)                                              \
    __attribute__((noinline)) static uint64_t rung##n(uint64_t x) { \
        volatile char local[16 + (n * 24) % 200];                  \
        memset((void *)local, (int)x, sizeof local);               \
        return next(x + local[0]) ^ local[1];                      \
    }
RUNG(20, leaf) RUNG(19, rung20) RUNG(18, rung19) RUNG(17, rung18) RUNG(16, rung17) RUNG(15, rung16) RUNG(14, rung15)
RUNG(13, rung14) RUNG(12, rung13) RUNG(11, rung12) RUNG(10, rung11) RUNG(9, rung10) RUNG(8, rung9) RUNG(7, rung8)
RUNG(6, rung7) RUNG(5, rung6) RUNG(4, rung5) RUNG(3, rung4) RUNG(2, rung3) RUNG(1, rung2)

static void *sleeper(void *unused) {
    for (;;)
        pause();
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 1;
    int file = open(argv[1], O_RDWR);
    uint64_t *counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED)
        return 1;
    done = counts + atoi(argv[2]);
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    for (int i = 0; i < atoi(argv[4]); i++)
        pthread_create(&thread, &small, sleeper, NULL);
    if (!atoi(argv[3]))
        sleeper(NULL);
    for (uint64_t x = 88172645463325252ull;;)
        x = rung1(x) | 1;
}
