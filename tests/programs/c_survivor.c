/* Work whose every slip is noticed: checksums in two threads, a thread that naps in epoll_wait, a timer, and a child
 * that queues numbered signals. Ends when standard input ends; prints "checksums-wrong EINTRs signals-lost" and
 * whether the timer fired.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int stop;
static volatile long wrong, interrupted, received, disorder, ticks;

static unsigned long checksum(void) {
    unsigned long sum = 1469598103934665603ul;
    for (int i = 0; i < 20000; i++) sum = (sum ^ (i & 255)) * 1099511628211ul;
    return sum;
}
static void *work(void *unused) {
    unsigned long right = checksum();
    (void)unused;
    while (!stop)
        if (checksum() != right) wrong++;
    return NULL;
}
static void *nap(void *unused) {
    struct epoll_event event;
    int fd = epoll_create1(0);
    (void)unused;
    while (!stop) {
        checksum();
        if (epoll_wait(fd, &event, 1, 1) < 0 && errno == EINTR) interrupted++;
    }
    return NULL;
}
static void on_value(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if (info->si_value.sival_int != received++) disorder++;
}
static void on_tick(int number) {
    (void)number;
    ticks++;
}

int main(void) {
    struct sigaction value = {.sa_sigaction = on_value, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigaction tick = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    struct itimerval each = {{0, 2000}, {0, 2000}};
    int to_child[2], from_child[2];
    pthread_t threads[3];
    sigset_t all, old;
    long sent;
    char byte;
    alarm(0);
    sigaction(SIGRTMIN, &value, NULL);
    sigaction(SIGALRM, &tick, NULL);
    if (pipe(to_child) || pipe(from_child)) return 1;
    if (fork() == 0) {
        close(to_child[1]);
        fclose(stdin);
        pid_t parent = getppid();
        struct timeval now = {0, 0};
        for (sent = 0;; ) {
            fd_set set;
            FD_ZERO(&set);
            FD_SET(to_child[0], &set);
            now.tv_usec = 300;
            if (select(to_child[0] + 1, &set, NULL, NULL, &now) > 0 || getppid() != parent) break;
            union sigval number = {.sival_int = sent};
            if (sigqueue(parent, SIGRTMIN, number) == 0) sent++;
        }
        if (write(from_child[1], &sent, sizeof sent) < 0) return 1;
        _exit(0);
    }
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, i < 2 ? work : nap, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    setitimer(ITIMER_REAL, &each, NULL);
    printf("ready\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    close(to_child[0]);
    close(to_child[1]);
    if (read(from_child[0], &sent, sizeof sent) != sizeof sent) return 1;
    wait(NULL);
    printf("%ld %ld %ld %d\n", wrong, interrupted, sent - received + disorder, ticks > 0);
    return 0;
}
