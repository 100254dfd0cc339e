// Threads that hand turns to each other: busy() for some microseconds, then the turn goes to the next one.
//
//   relay MICROSECONDS THREADS TURNS
//
// Until its standard input ends. Then: nanoseconds of processor time in busy(), and of the program.

#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long wanted_ns, threads;
static sem_t turn[256];
static _Atomic long in_busy_ns;

static long clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

__attribute__((noinline)) void busy(long until_ns) {
    volatile unsigned long sum = 0;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until_ns)
        for (int i = 0; i < 2000; i++) sum += i;
}

static void *relay(void *number) {
    for (long own = (long)number, start;;) {
        sem_wait(&turn[own]);
        start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        busy(start + wanted_ns);
        atomic_fetch_add(&in_busy_ns, clock_ns(CLOCK_THREAD_CPUTIME_ID) - start);
        sem_post(&turn[(own + 1) % threads]);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    wanted_ns = atol(argv[1]) * 1000;
    threads = atol(argv[2]);
    long turns = atol(argv[3]);
    if (threads < 1 || threads > 256 || turns < 1 || turns >= threads) return 2;
    for (long i = 0; i < threads; i++) sem_init(&turn[i], 0, i < turns);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, relay, (void *)i)) return 1;
    }
    printf("ready\n");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (!poll(&input, 1, 100)) continue;
    printf("%ld %ld\n", in_busy_ns, clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    fflush(stdout);
    _Exit(0);
}
