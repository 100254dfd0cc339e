// Threads or processes that live for a moment each, all of their time in busy().
//
//   births thread|process MICROSECONDS AT_ONCE
//
// Until its standard input ends. Then: nanoseconds of processor time in busy(), and of the program with all of its children.

#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long wanted_ns;
static _Atomic long *in_busy_ns;

static long clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

__attribute__((noinline)) void busy(long until_ns) {
    volatile unsigned long sum = 0;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until_ns)
        for (int i = 0; i < 20000; i++) sum += i;
}

static void *live(void *unused) {
    long start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    busy(start + wanted_ns);
    atomic_fetch_add(in_busy_ns, clock_ns(CLOCK_THREAD_CPUTIME_ID) - start);
    return unused;
}

static long spent_ns(int who) {
    struct rusage usage;
    getrusage(who, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000L +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000L;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int processes = !strcmp(argv[1], "process"), at_once = atoi(argv[3]);
    wanted_ns = atol(argv[2]) * 1000;
    in_busy_ns = mmap(NULL, sizeof *in_busy_ns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (in_busy_ns == MAP_FAILED || at_once < 1 || at_once > 64) return 2;
    printf("ready\n");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (!poll(&input, 1, 0)) {
        pthread_t threads[64];
        for (int i = 0; i < at_once; i++) {
            if (!processes) {
                if (pthread_create(&threads[i], NULL, live, NULL)) return 1;
            } else if (fork() == 0) {
                live(NULL);
                _exit(0);
            }
        }
        for (int i = 0; i < at_once; i++)
            processes ? (void)wait(NULL) : (void)pthread_join(threads[i], NULL);
    }
    printf("%ld %ld\n", *in_busy_ns, spent_ns(RUSAGE_SELF) + spent_ns(RUSAGE_CHILDREN));
    return 0;
}
