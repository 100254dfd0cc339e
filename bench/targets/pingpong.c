/* Two threads on one processor that pass a byte to and fro. For each part of a second, the number of round trips per
 * second is printed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int forth[2], back[2];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *pong(void *unused) {
    char byte;
    while (read(forth[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
        ;
    return unused;
}

int main(int argc, char **argv) {
    double end = now() + (argc > 1 ? atof(argv[1]) : 5);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    pthread_t thread;
    if (sched_setaffinity(0, sizeof one, &one) || pipe(forth) || pipe(back) || pthread_create(&thread, 0, pong, 0))
        return 1;
    char byte = 1;
    while (now() < end) {
        double begin = now();
        long trips = 0;
        for (; now() < begin + 0.25; trips += 100)
            for (int i = 0; i < 100; i++)
                if (write(forth[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
                    return 1;
        printf("%.0f\n", trips / (now() - begin));
        fflush(stdout);
    }
    return 0;
}
