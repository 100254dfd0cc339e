/* Threads that nap and wait for each other. For each wait, they print a line "TID BEGIN END" (CLOCK_MONOTONIC, ns). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST (1 << 20)
enum { SHORT, MEDIUM, LONG, ASKS, ANSWERS, THREADS };
static const long nap_ns[] = {200000, 2000000, 30000000};

struct wait {
    long begin, end;
};
static struct {
    int kind, tid, count;
    struct wait *waits;
} threads[THREADS];
static int questions[2], answers[2];
static long end_ns;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void work(long ns) {
    for (long until = now() + ns; now() < until;)
        ;
}

static void nap(long ns) {
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, 0);
}

static void *run(void *argument) {
    int kind = *(int *)argument;
    char byte = 0;
    threads[kind].tid = syscall(SYS_gettid);
    while (now() < end_ns && threads[kind].count < MOST) {
        work(50000);
        if (kind == ASKS && write(questions[1], &byte, 1) != 1)
            break;
        struct wait *wait = &threads[kind].waits[threads[kind].count++];
        wait->begin = now();
        if (kind <= LONG)
            nap(nap_ns[kind]);
        else if (read(kind == ASKS ? answers[0] : questions[0], &byte, 1) != 1)
            break;
        wait->end = now();
        if (kind == ANSWERS && write(answers[1], &byte, 1) != 1)
            break;
    }
    if (kind == ASKS)
        close(questions[1]);
    if (kind == ANSWERS)
        close(answers[1]);
    return 0;
}

int main(int argc, char **argv) {
    pthread_t all[THREADS];
    end_ns = now() + (long)(1e9 * (argc > 1 ? atof(argv[1]) : 5));
    if (pipe(questions) || pipe(answers))
        return 1;
    for (int kind = 0; kind < THREADS; kind++) {
        threads[kind].kind = kind;
        threads[kind].waits = calloc(MOST, sizeof(struct wait));
        if (!threads[kind].waits || pthread_create(&all[kind], 0, run, &threads[kind].kind))
            return 1;
    }
    for (int kind = 0; kind < THREADS; kind++)
        pthread_join(all[kind], 0);
    for (int kind = 0; kind < THREADS; kind++)
        for (struct wait *wait = threads[kind].waits; wait < threads[kind].waits + threads[kind].count; wait++)
            if (wait->end)
                printf("%d %ld %ld\n", threads[kind].tid, wait->begin, wait->end);
    return 0;
}
