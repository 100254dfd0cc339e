/* clocked_service FILE: a service that records its own processor time
 * (see clocked_service.py), until it is killed. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile double sink;

static long long now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void smooth(void) {
    for (int i = 1; i < 300000; i++)
        sink += 1.0 / i;
}

int main(int argc, char **argv) {
    FILE *out = argc > 1 ? fopen(argv[1], "a") : NULL;
    if (!out)
        return 1;
    setlinebuf(out);
    for (;;) {
        smooth();
        fprintf(out, "%lld %lld\n", now(CLOCK_MONOTONIC), now(CLOCK_PROCESS_CPUTIME_ID));
        usleep(25000);
    }
}
