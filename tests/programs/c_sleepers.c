/* Each kind of blocking call, over and over, in a thread of its own: run a little, sleep a little.
 * Usage: c_sleepers RUN_US SLEEP_US KIND...; ends when standard input ends; prints "KIND calls EINTRs" for each.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int stop;
static long run_us, sleep_us;
static char watched[] = "/tmp/pyprof-sleepers-XXXXXX";

struct kind {
    const char *name;
    int (*call)(int fd);
    int fd;
    long calls, interrupted;
    int tid;
};

static struct timespec in(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    return t;
}

static int do_epoll(int fd) {
    struct epoll_event event;
    return epoll_wait(fd, &event, 1, (sleep_us + 999) / 1000);
}
static int do_epoll_mask(int fd) {
    struct epoll_event event;
    sigset_t none;
    sigemptyset(&none);
    return epoll_pwait(fd, &event, 1, (sleep_us + 999) / 1000, &none);
}
static int do_nanosleep(int fd) {
    struct timespec t = in(sleep_us);
    (void)fd;
    return nanosleep(&t, NULL);
}
static int do_futex(int fd) {
    static int word;
    struct timespec t = in(sleep_us);
    (void)fd;
    return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
}
static int do_recv(int fd) {
    char bytes[8];
    return recv(fd, bytes, sizeof bytes, 0);
}
static int do_semtimedop(int fd) {
    struct sembuf op = {0, -1, 0};
    struct timespec t = in(sleep_us);
    return semtimedop(fd, &op, 1, &t);
}
static int do_poll(int fd) { return poll(NULL, 0, (sleep_us + 999) / 1000 + 0 * fd); }
static int do_sigtimedwait(int fd) {
    sigset_t set;
    struct timespec t = in(sleep_us);
    (void)fd;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return sigtimedwait(&set, NULL, &t);
}
static int do_inotify(int fd) {
    char bytes[4096];
    return read(fd, bytes, sizeof bytes);
}
static int do_pipe(int fd) {
    char byte;
    return read(fd, &byte, 1);
}

static int pipe_in;
static void *waker(void *unused) { /* for the two calls that know no timeout */
    (void)unused;
    for (int last = 0; !last;) { /* a whole round after the stop: who waits by then is woken */
        last = stop;
        struct timespec t = in(sleep_us);
        nanosleep(&t, NULL);
        close(open(watched, O_WRONLY));
        if (write(pipe_in, "x", 1) < 0) break;
    }
    return NULL;
}

static void *run(void *argument) {
    struct kind *kind = argument;
    kind->tid = syscall(SYS_gettid);
    while (!stop) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        do clock_gettime(CLOCK_MONOTONIC, &b);
        while ((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec < run_us * 1000);
        if (kind->call(kind->fd) < 0 && errno == EINTR) kind->interrupted++;
        kind->calls++;
    }
    return NULL;
}

int main(int count, char **words) {
    struct timeval timeout;
    int pipe_fds[2], n = 0;
    pthread_t threads[16], wake;
    char byte;
    alarm(120);
    run_us = atol(words[1]);
    sleep_us = atol(words[2]);
    close(mkstemp(watched));
    if (pipe(pipe_fds) < 0) return 1;
    pipe_in = pipe_fds[1];
    int epoll = epoll_create1(0), inotify = inotify_init1(0), semaphore = semget(IPC_PRIVATE, 1, 0600);
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(udp, (struct sockaddr *)&here, sizeof here) < 0) return 1;
    timeout.tv_sec = sleep_us / 1000000;
    timeout.tv_usec = sleep_us % 1000000;
    setsockopt(udp, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    inotify_add_watch(inotify, watched, IN_OPEN | IN_CLOSE);
    struct kind kinds[] = {
        {"epoll_wait", do_epoll, epoll, 0, 0, 0},       {"epoll_pwait", do_epoll_mask, epoll, 0, 0, 0},
        {"nanosleep", do_nanosleep, 0, 0, 0, 0},        {"futex", do_futex, 0, 0, 0, 0},
        {"recv", do_recv, udp, 0, 0, 0},                {"semtimedop", do_semtimedop, semaphore, 0, 0, 0},
        {"poll", do_poll, 0, 0, 0, 0},                  {"sigtimedwait", do_sigtimedwait, 0, 0, 0, 0},
        {"inotify", do_inotify, inotify, 0, 0, 0},      {"pipe", do_pipe, pipe_fds[0], 0, 0, 0},
    };
    struct kind *chosen[16];
    for (int i = 3; i < count; i++)
        for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (strcmp(words[i], kinds[k].name) == 0) chosen[n++] = &kinds[k];
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, run, chosen[i]);
    for (int i = 0; i < n; i++)
        while (*(volatile int *)&chosen[i]->tid == 0) usleep(100);
    pthread_create(&wake, NULL, waker, NULL);
    printf("ready");
    for (int i = 0; i < n; i++) printf(" %d", chosen[i]->tid);
    printf("\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    stop = 1;
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    pthread_join(wake, NULL);
    for (int i = 0; i < n; i++) printf("%s %ld %ld\n", chosen[i]->name, chosen[i]->calls, chosen[i]->interrupted);
    semctl(semaphore, 0, IPC_RMID);
    unlink(watched);
    return 0;
}
