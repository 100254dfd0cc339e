/* Threads asleep below frames of many shapes, which know their own callers. Usage: known_sleepers CALL... | *CALL...
 * For each call a child is forked whose main thread and a pthread sleep in it; *: the function that sleeps is called
 * through a pointer. Each function on the way keeps its return address, and frame records of other calls are left behind.
 * Printed: "CALL pid tid RA RA ..." a thread, innermost first, then "ready"; all end with standard input.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MOST 32
#define NOINLINE __attribute__((noinline))

struct sleeper {
    volatile int tid, dry, semaphores, queue, depth;
    int which, pointer;
    void *ra[MOST];
    volatile long sink;
};

#define HERE(s) ((s)->dry || (s)->depth >= MOST ? NULL : ((s)->ra[(s)->depth++] = __builtin_return_address(0)))

#ifdef ALLOCA
#define ROOM(s) volatile char *room = alloca(64 + ((s)->sink++ & 3) * 80)
#else
#define ROOM(s) volatile char room[200]
#endif

/* What is called on the way and returns: whole frame records stay below, in holes of the frames that come. */
typedef int litter_call(struct sleeper *, int);
static litter_call *volatile litters[4];
#define LITTER(name, size, next)                                                                                       \
    NOINLINE static int name(struct sleeper *s, int n) {                                                               \
        volatile char hole[size];                                                                                      \
        int got = n ? next(s, n - 1) : 0;                                                                              \
        s->sink += got + (long)&hole;                                                                                  \
        return got + n;                                                                                                \
    }
LITTER(litter_0, 40, litters[n & 3])
LITTER(litter_1, 24, litter_0)
LITTER(litter_2, 88, litters[(n + 1) & 3])
LITTER(litter_3, 8, litter_1)
static litter_call *volatile litters[4] = {litter_0, litter_1, litter_2, litter_3};

#define WAIT(name) NOINLINE static int wait_##name(struct sleeper *s)
#define BEGIN(s)                                                                                                       \
    HERE(s);                                                                                                           \
    ROOM(s);                                                                                                           \
    if ((s)->dry)                                                                                                      \
    return litters[(s)->which & 3](s, 3)
#define END(s, ...)                                                                                                    \
    litters[(s)->which & 3](s, 5);                                                                                     \
    (s)->tid = syscall(SYS_gettid);                                                                                    \
    long got = __VA_ARGS__;                                                                                            \
    return got + room[0]

static int silent(void) {
    int pair[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) ? -1 : pair[0];
}

WAIT(epoll_wait) {
    BEGIN(s);
    struct epoll_event event;
    END(s, epoll_wait(epoll_create1(0), &event, 1, -1));
}
WAIT(epoll_pwait) {
    BEGIN(s);
    struct epoll_event event;
    sigset_t set;
    sigemptyset(&set);
    END(s, epoll_pwait(epoll_create1(0), &event, 1, -1, &set));
}
WAIT(recv) {
    BEGIN(s);
    char byte;
    END(s, recv(silent(), &byte, 1, 0));
}
WAIT(recvmsg) {
    BEGIN(s);
    char byte;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    END(s, recvmsg(silent(), &message, 0));
}
WAIT(accept) {
    BEGIN(s);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(fd, (void *)&address, 2) || listen(fd, 1))
        return 1;
    END(s, accept(fd, NULL, NULL));
}
WAIT(semop) {
    BEGIN(s);
    struct sembuf down = {0, -1, 0};
    int id = semget(IPC_PRIVATE, 1, 0600);
    s->semaphores = id + 1;
    END(s, semop(id, &down, 1));
}
WAIT(sigwaitinfo) {
    BEGIN(s);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    END(s, sigwaitinfo(&set, NULL));
}
WAIT(read) {
    BEGIN(s);
    char byte;
    END(s, read(silent(), &byte, 1));
}
WAIT(poll) {
    BEGIN(s);
    struct pollfd none = {.fd = -1};
    END(s, poll(&none, 1, -1));
}
WAIT(select) {
    BEGIN(s);
    fd_set set;
    FD_ZERO(&set);
    END(s, select(0, &set, NULL, NULL, NULL));
}
WAIT(nanosleep) {
    BEGIN(s);
    struct timespec time = {.tv_sec = 600};
    END(s, clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL));
}
WAIT(cond_wait) {
    BEGIN(s);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&mutex);
    END(s, pthread_cond_wait(&condition, &mutex));
}
WAIT(msgrcv) {
    BEGIN(s);
    struct {
        long type;
        char bytes[8];
    } message;
    int id = msgget(IPC_PRIVATE, 0600);
    s->queue = id + 1;
    END(s, msgrcv(id, &message, 8, 0, 0));
}
WAIT(pause) {
    BEGIN(s);
    END(s, pause());
}

#define CALLS                                                                                                          \
    CALL(epoll_wait) CALL(epoll_pwait) CALL(recv) CALL(recvmsg) CALL(accept) CALL(semop) CALL(sigwaitinfo) CALL(read)  \
    CALL(poll) CALL(select) CALL(nanosleep) CALL(cond_wait) CALL(msgrcv) CALL(pause)
#define CALL(name) {#name, wait_##name},
static const struct {
    const char *name;
    int (*volatile wait)(struct sleeper *);
} calls[] = {CALLS};
#undef CALL
#define CALL(name) NUMBER_##name,
enum { CALLS };
#undef CALL

/* The way to the call: direct calls and indirect ones, recursion, and a function that jumps on where it may. */
#define STEP(name, inner)                                                                                              \
    NOINLINE static int name(struct sleeper *s, int n) {                                                               \
        HERE(s);                                                                                                       \
        ROOM(s);                                                                                                       \
        litters[n & 3](s, 2);                                                                                          \
        int got = inner;                                                                                               \
        return got + room[n];                                                                                          \
    }
#define CALL(name) case NUMBER_##name: got += wait_##name(s); break;
NOINLINE static int step_direct(struct sleeper *s, int n) {
    HERE(s);
    ROOM(s);
    int got = n;
    switch (s->which) { CALLS }
    return got + room[n];
}
STEP(step_pointer, calls[s->which].wait(s))
#ifdef __OPTIMIZE__
NOINLINE static int step_jump(struct sleeper *s, int n) { return s->pointer ? step_pointer(s, n) : step_direct(s, n); }
#else
STEP(step_jump, s->pointer ? step_pointer(s, n) : step_direct(s, n))
#endif
STEP(step_outer, step_jump(s, n))
static litter_call *volatile outer = step_outer;
STEP(step_again, n > 3 ? step_again(s, n - 2) : outer(s, n))

static void *begin(void *sleeper) {
    struct sleeper *s = sleeper;
    s->dry = 1; /* the same ways, walked before from other places */
    step_direct(s, 2);
    step_again(s, 4);
    step_pointer(s, 1);
    s->dry = 0;
    HERE(s);
    s->sink += step_again(s, 6 + s->which % 2);
    return NULL;
}

NOINLINE static int child(struct sleeper *two, void *callers) {
    pthread_t thread;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    two->ra[two->depth++] = callers;
    HERE(two);
    pthread_create(&thread, NULL, begin, two + 1);
    begin(two);
    return two->depth;
}

int main(int count, char **words) {
    struct sleeper *all = mmap(NULL, 2 * count * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[count];
    alarm(120);
    for (int i = 1; i < count; i++) {
        unsigned k = 0;
        int pointer = words[i][0] == '*';
        while (strcmp(calls[k].name, words[i] + pointer))
            if (++k == sizeof calls / sizeof *calls)
                return 1;
        all[2 * i].which = all[2 * i + 1].which = k;
        all[2 * i].pointer = all[2 * i + 1].pointer = pointer;
        pids[i] = fork();
        if (pids[i] == 0)
            return child(&all[2 * i], __builtin_return_address(0));
    }
    for (int i = 2; i < 2 * count; i++) {
        while (all[i].tid == 0)
            usleep(1000);
        printf("%s %d %d", words[i / 2], pids[i / 2], all[i].tid);
        while (all[i].depth > 0)
            printf(" %p", all[i].ra[--all[i].depth]);
        printf("\n");
    }
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    for (int i = 1; i < count; i++)
        kill(pids[i], SIGKILL);
    for (int i = 2; i < 2 * count; i++) {
        if (all[i].semaphores)
            semctl(all[i].semaphores - 1, 0, IPC_RMID);
        if (all[i].queue)
            msgctl(all[i].queue - 1, IPC_RMID, NULL);
    }
    return 0;
}
