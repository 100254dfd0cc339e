/* A child queues N signals with the values 0..N-1 to its spinning parent, with a timer firing meanwhile.
 * Prints "count sum ticks-were-seen sender-was-right".
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long count, sum, ticks, wrong;
static pid_t child;

static void on_value(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if (info->si_code != SI_QUEUE || info->si_pid != child) wrong++;
    if (info->si_value.sival_int != count) wrong++; /* in order */
    count++;
    sum += info->si_value.sival_int;
}
static void on_tick(int number) {
    (void)number;
    ticks++;
}

int main(int words, char **argument) {
    long n = words > 1 ? atol(argument[1]) : 1000;
    struct sigaction action = {.sa_sigaction = on_value, .sa_flags = SA_SIGINFO}, tick = {.sa_handler = on_tick};
    struct itimerval each = {{0, 1000}, {0, 1000}};
    sigset_t set;
    int status;
    alarm(120);
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigaction(SIGRTMIN, &action, NULL);
    sigaction(SIGALRM, &tick, NULL);
    child = fork();
    if (child == 0) {
        char byte;
        if (read(0, &byte, 1) < 0) _exit(1);
        for (long i = 0; i < n; i++) {
            union sigval value = {.sival_int = i};
            while (sigqueue(getppid(), SIGRTMIN, value) < 0 && errno == EAGAIN) usleep(100);
            if (i % 8 == 0) usleep(20);
        }
        _exit(0);
    }
    printf("ready %d\n", child);
    fflush(stdout);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    setitimer(ITIMER_REAL, &each, NULL);
    while (count < n) {
    }
    waitpid(child, &status, 0);
    printf("%ld %ld %d %d\n", count, sum, ticks > 0, wrong == 0 && status == 0);
    return 0;
}
