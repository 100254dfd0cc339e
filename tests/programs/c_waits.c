/* Threads that know where and how long they waited. Each argument is a thread. "ready" comes first; after each line of
 * input the sums so far are printed: the function, nanoseconds, times, then "end".
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int forth[2], back[2], tick[2];

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void nap(long ns) {
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static void take(int fd) {
    char byte;
    if (read(fd, &byte, 1) != 1)
        exit(1);
}

static void give(int fd) {
    if (write(fd, "x", 1) != 1)
        exit(1);
}

static volatile long ns_of[6], times_of[6];
static const char *const names[6] = {"nap_short", "nap_long", "nap_endless", "wait_first", "wait_second", "wait_tick"};

#define PLACE(name, number, waits)                                                                                     \
    __attribute__((noinline)) static void name(void) {                                                                 \
        long began = now_ns();                                                                                         \
        waits;                                                                                                         \
        ns_of[number] += now_ns() - began;                                                                             \
        times_of[number]++;                                                                                            \
    }
PLACE(nap_short, 0, nap(1000000))
PLACE(nap_long, 1, nap(30000000))
PLACE(nap_endless, 2, nap(600000000000L))
PLACE(wait_first, 3, take(forth[0]))
PLACE(wait_second, 4, take(forth[0]))
PLACE(wait_tick, 5, take(tick[0]))

#define THREAD(name, step)                                                                                             \
    static void *name(void *unused) {                                                                                  \
        for (;;) {                                                                                                     \
            step;                                                                                                      \
        }                                                                                                              \
        return unused;                                                                                                 \
    }
static volatile long work;
THREAD(naps, nap_short(); nap_short(); nap_short(); nap_long())
THREAD(endless, nap_endless())
THREAD(spins, work++)
THREAD(reads, wait_tick())
THREAD(ticks, nap(5000000); give(tick[1]))
THREAD(pings, give(forth[1]); take(back[0]))
THREAD(pongs, wait_first(); give(back[1]); wait_second(); give(back[1]))

static const struct {
    const char *name;
    void *(*run)(void *);
} threads[] = {{"naps", naps},   {"endless", endless}, {"spins", spins}, {"reads", reads},
               {"ticks", ticks}, {"pings", pings},     {"pongs", pongs}};

int main(int argc, char **argv) {
    if (pipe(forth) || pipe(back) || pipe(tick))
        return 1;
    for (int i = 1; i < argc; i++)
        for (unsigned k = 0; k < sizeof threads / sizeof *threads; k++)
            if (!strcmp(argv[i], threads[k].name)) {
                pthread_t thread;
                pthread_create(&thread, NULL, threads[k].run, NULL);
                pthread_setname_np(thread, threads[k].name);
            }
    puts("ready");
    for (;;) {
        fflush(stdout);
        for (int c = 0; c != '\n';)
            if ((c = getchar()) == EOF)
                return 0;
        for (int k = 0; k < 6; k++)
            printf("%s %ld %ld\n", names[k], ns_of[k], times_of[k]);
        puts("end");
    }
}
