/* A program that spends most of its time in a signal handler on an alternate stack. The handler interrupts code that is
 * 12 frames deep, many times a second.
 *
 * gcc -O2 -fomit-frame-pointer -pthread -o handlers handlers.c
 * handlers SECONDS  ->  {"work": rounds done}
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t end_ns;
static volatile uint64_t work;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

__attribute__((noinline)) static uint64_t spin(uint64_t x, int rounds) {
    for (int i = 0; i < rounds; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    work++;
    return x;
}

static void handler(int number) {
    volatile uint64_t x = 88172645463325252ull + number;
    for (int i = 0; i < 200; i++)
        x = spin(x, 2000);
}

__attribute__((noinline)) static uint64_t rung(int left, uint64_t x) {
    volatile char local[200];
    local[0] = (char)x;
    if (left)
        return rung(left - 1, x + 1) + local[0];
    while (now_ns() < end_ns)
        x = spin(x, 2000);
    return x + local[0];
}

int main(int argc, char **argv) {
    end_ns = now_ns() + (uint64_t)((argc > 1 ? atof(argv[1]) : 5) * 1e9);
    stack_t other = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec when = {{0, 1300000}, {0, 1300000}};
    timer_t timer;
    if (sigaltstack(&other, 0) || sigaction(SIGUSR1, &action, 0) || timer_create(CLOCK_MONOTONIC, &event, &timer)
        || timer_settime(timer, 0, &when, 0))
        return 1;
    volatile uint64_t keep = rung(12, 1);
    (void)keep;
    printf("{\"work\": %llu}\n", (unsigned long long)work);
    return 0;
}
