/* One or several threads whose innermost function, 30 frames deep, spins and reads the clock.
 *
 * gcc -O2 -fomit-frame-pointer -pthread -o ladder ladder.c
 * ladder SECONDS [THREADS [SLEEPERS]]  ->  one line of JSON: work units done, and gaps of the first thread.
 * A gap is a time of more than 5 us between two readings of the clock, in which the thread did not run.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_GAPS 2000000
static uint32_t *gaps;
static uint64_t gap_count, work[64];
static double seconds;

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

__attribute__((noinline)) static void leaf(long id, volatile char *keep) {
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9), last = now_ns(), done = 0, x = 88172645463325252ull;
    while (last < end) {
        for (int i = 0; i < 400; i++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        done++;
        uint64_t t = now_ns();
        if (id == 0 && t - last > 5000 && gap_count < MOST_GAPS)
            gaps[gap_count++] = (t - last) / 10;
        last = t;
    }
    keep[0] = (char)x;
    work[id] = done;
}

#define RUNG(n, next)                                                              \
    __attribute__((noinline)) static void rung##n(long id, volatile char *keep) {  \
        volatile char local[16 + (n * 24) % 200];                                  \
        memset((void *)local, (int)id, sizeof local);                              \
        next(id, local);                                                           \
        keep[0] = local[0];                                                        \
    }
RUNG(30, leaf) RUNG(29, rung30) RUNG(28, rung29) RUNG(27, rung28) RUNG(26, rung27) RUNG(25, rung26)
RUNG(24, rung25) RUNG(23, rung24) RUNG(22, rung23) RUNG(21, rung22) RUNG(20, rung21) RUNG(19, rung20)
RUNG(18, rung19) RUNG(17, rung18) RUNG(16, rung17) RUNG(15, rung16) RUNG(14, rung15) RUNG(13, rung14)
RUNG(12, rung13) RUNG(11, rung12) RUNG(10, rung11) RUNG(9, rung10) RUNG(8, rung9) RUNG(7, rung8)
RUNG(6, rung7) RUNG(5, rung6) RUNG(4, rung5) RUNG(3, rung4) RUNG(2, rung3) RUNG(1, rung2)

static void *run(void *id) {
    char keep[8];
    rung1((long)id, keep);
    return NULL;
}

static void *sleeper(void *unused) {
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

int main(int argc, char **argv) {
    seconds = argc > 1 ? atof(argv[1]) : 5;
    int threads = argc > 2 ? atoi(argv[2]) : 1, sleepers = argc > 3 ? atoi(argv[3]) : 0;
    pthread_t thread[64], other;
    gaps = calloc(MOST_GAPS, sizeof *gaps);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    for (int i = 0; i < sleepers; i++)
        pthread_create(&other, &small, sleeper, NULL);
    for (long i = 1; i < threads; i++)
        pthread_create(&thread[i], NULL, run, (void *)i);
    run((void *)0);
    uint64_t total = work[0];
    for (int i = 1; i < threads; i++) {
        pthread_join(thread[i], NULL);
        total += work[i];
    }
    printf("{\"work\": %llu, \"gaps_10ns\": [", (unsigned long long)total);
    for (uint64_t i = 0; i < gap_count; i++)
        printf("%s%u", i ? "," : "", gaps[i]);
    puts("]}");
    return 0;
}
