/* The calls in which known_sleepers sleeps, as a C library has them that is built with frame pointers: the system call
 * stands in a function that calls others before and after, as those do that allow for cancellation.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

static volatile int cancelled;
__attribute__((noinline)) static int allow(int before) {
    int after = cancelled;
    cancelled = before;
    return after;
}

#define A(x) ((long)(x))
#define SLEEP(number, a, b, c, d, e, f)                                                                                \
    {                                                                                                                  \
        int before = allow(1);                                                                                         \
        register long r10 __asm__("r10") = A(d), r8 __asm__("r8") = A(e), r9 __asm__("r9") = A(f);                     \
        long result;                                                                                                   \
        __asm__ volatile("syscall"                                                                                     \
                         : "=a"(result)                                                                                \
                         : "a"(A(number)), "D"(A(a)), "S"(A(b)), "d"(A(c)), "r"(r10), "r"(r8), "r"(r9)                 \
                         : "rcx", "r11", "memory");                                                                    \
        allow(before);                                                                                                 \
        return result;                                                                                                 \
    }

int epoll_wait(int fd, struct epoll_event *e, int n, int ms) SLEEP(SYS_epoll_wait, fd, e, n, ms, 0, 0)
int epoll_pwait(int fd, struct epoll_event *e, int n, int ms, const sigset_t *set)
    SLEEP(SYS_epoll_pwait, fd, e, n, ms, set, 8)
ssize_t recv(int fd, void *to, size_t n, int flags) SLEEP(SYS_recvfrom, fd, to, n, flags, 0, 0)
ssize_t recvmsg(int fd, struct msghdr *m, int flags) SLEEP(SYS_recvmsg, fd, m, flags, 0, 0, 0)
int accept(int fd, struct sockaddr *a, socklen_t *n) SLEEP(SYS_accept, fd, a, n, 0, 0, 0)
int semop(int id, struct sembuf *ops, size_t n) SLEEP(SYS_semop, id, ops, n, 0, 0, 0)
int sigwaitinfo(const sigset_t *set, siginfo_t *info) SLEEP(SYS_rt_sigtimedwait, set, info, 0, 8, 0, 0)
ssize_t read(int fd, void *to, size_t n) SLEEP(SYS_read, fd, to, n, 0, 0, 0)
int poll(struct pollfd *fds, nfds_t n, int ms) SLEEP(SYS_poll, fds, n, ms, 0, 0, 0)
int select(int n, fd_set *r, fd_set *w, fd_set *x, struct timeval *t) SLEEP(SYS_select, n, r, w, x, t, 0)
int clock_nanosleep(clockid_t c, int flags, const struct timespec *t, struct timespec *left)
    SLEEP(SYS_clock_nanosleep, c, flags, t, left, 0, 0)
int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) SLEEP(SYS_futex, c, m ? 0 : 1, *(int *)c, 0, 0, 0)
ssize_t msgrcv(int id, void *m, size_t n, long type, int flags) SLEEP(SYS_msgrcv, id, m, n, type, flags, 0)
int pause(void) SLEEP(SYS_pause, 0, 0, 0, 0, 0, 0)
