/* Calls that transfer much, each kind in a thread of its own; a child holds the other ends.
 * Usage: c_transfers WORK_US KIND...: compute so long before each call. Ends when standard input ends; prints
 * "KIND calls shorts" for each: calls that transferred less than they were asked for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST (1 << 20)
#define PIECES 16

static volatile int stop;
static long work_us;

struct kind {
    const char *name;
    long (*call)(struct kind *kind);
    long asked;
    enum { NOTHING, PIPE_OUT, SOCKET_OUT, SOCKET_IN, ONE_FILE, TWO_FILES, FILE_TO_SOCKET, PIPE_TO_SOCKET } ends;
    int flags; /* O_NONBLOCK: of the descriptor */
    int fd, other, source;
    char *bytes;
    long calls, shorts;
};

static struct iovec *pieces(char *bytes, struct iovec *into) {
    for (int i = 0; i < PIECES; i++) into[i] = (struct iovec){bytes + (long)i * MOST / PIECES, MOST / PIECES};
    return into;
}
static long do_write(struct kind *k) { return write(k->fd, k->bytes, MOST); }
static long do_writev(struct kind *k) {
    struct iovec parts[PIECES];
    return writev(k->fd, pieces(k->bytes, parts), PIECES);
}
static long do_send(struct kind *k) { return send(k->fd, k->bytes, MOST, 0); }
static long do_sendmsg(struct kind *k) {
    struct iovec parts[PIECES];
    struct msghdr header = {.msg_iov = pieces(k->bytes, parts), .msg_iovlen = PIECES};
    return sendmsg(k->fd, &header, 0);
}
static long do_sendmmsg(struct kind *k) { /* counts bytes, which the call itself does not */
    struct iovec parts[PIECES];
    struct mmsghdr both[2] = {
        {.msg_hdr = {.msg_iov = pieces(k->bytes, parts), .msg_iovlen = PIECES / 2}},
        {.msg_hdr = {.msg_iov = parts + PIECES / 2, .msg_iovlen = PIECES / 2}},
    };
    long done = 0, sent = sendmmsg(k->fd, both, 2, 0);
    for (long i = 0; i < sent; i++) done += both[i].msg_len;
    return sent < 0 ? sent : done;
}
static long do_recv(struct kind *k) { return recv(k->fd, k->bytes, MOST, MSG_WAITALL); }
static long do_recvmsg(struct kind *k) {
    struct iovec parts[PIECES];
    struct msghdr header = {.msg_iov = pieces(k->bytes, parts), .msg_iovlen = PIECES};
    return recvmsg(k->fd, &header, MSG_WAITALL);
}
static long do_read(struct kind *k) { return pread(k->source, k->bytes, MOST, 0); }
static long do_zero(struct kind *k) { return read(k->source, k->bytes, MOST); }
static long do_getrandom(struct kind *k) { return getrandom(k->bytes, MOST, 0); }
static long do_sendfile(struct kind *k) {
    off_t from = 0;
    return sendfile(k->fd, k->source, &from, MOST);
}
static long do_eof(struct kind *k) {
    off_t from = MOST / 2;
    return sendfile(k->fd, k->source, &from, MOST);
}
static long do_copy(struct kind *k) {
    off_t from = 0, to = 0;
    return copy_file_range(k->source, &from, k->other, &to, MOST, 0);
}
static long do_splice(struct kind *k) {
    static int filled;
    for (ssize_t n; filled < 65536; filled += n)
        if ((n = write(k->other, k->bytes, 65536 - filled)) < 0) return -1;
    long done = splice(k->source, NULL, k->fd, NULL, 65536, 0);
    if (done > 0) filled -= done;
    return done;
}

static struct kind kinds[] = {
    {"write", do_write, MOST, PIPE_OUT},
    {"writev", do_writev, MOST, PIPE_OUT},
    {"send", do_send, MOST, SOCKET_OUT},
    {"sendmsg", do_sendmsg, MOST, SOCKET_OUT},
    {"sendmmsg", do_sendmmsg, MOST, SOCKET_OUT},
    {"recv", do_recv, MOST, SOCKET_IN},
    {"recvmsg", do_recvmsg, MOST, SOCKET_IN},
    {"read", do_read, MOST, ONE_FILE},
    {"zero", do_zero, MOST, NOTHING},
    {"getrandom", do_getrandom, MOST, NOTHING},
    {"sendfile", do_sendfile, MOST, FILE_TO_SOCKET},
    {"copy_file_range", do_copy, MOST, TWO_FILES},
    {"splice", do_splice, 65536, PIPE_TO_SOCKET},
    {"nonblock", do_write, 0, PIPE_OUT, O_NONBLOCK}, /* short by itself */
    {"eof", do_eof, MOST / 2, FILE_TO_SOCKET},       /* asks for more than there is */
};

static int new_file(void) {
    static char zeros[MOST];
    char name[] = "/tmp/pyprof-transfers-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    if (fd < 0 || write(fd, zeros, MOST) != MOST) exit(1);
    return fd;
}

static void drain(int fd) {
    static char bytes[MOST];
    while (read(fd, bytes, sizeof bytes) > 0) {
    }
    _exit(0);
}
static void feed(int fd) {
    static char bytes[MOST];
    while (write(fd, bytes, sizeof bytes) > 0) {
    }
    _exit(0);
}

static void open_ends(struct kind *k) {
    int pair[2], feeding = k->ends == SOCKET_IN;
    k->fd = k->other = k->source = -1;
    k->bytes = calloc(1, MOST);
    if (k->ends == ONE_FILE || k->ends == TWO_FILES || k->ends == FILE_TO_SOCKET) k->source = new_file();
    if (k->ends == TWO_FILES) k->other = new_file();
    if (k->ends == NOTHING) k->source = open("/dev/zero", O_RDONLY);
    if (k->ends == PIPE_TO_SOCKET) {
        if (pipe(pair)) exit(1);
        k->source = pair[0], k->other = pair[1];
    }
    if (k->ends == NOTHING || k->ends == ONE_FILE || k->ends == TWO_FILES) return;
    if (k->ends == PIPE_OUT ? pipe(pair) : socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(1);
    if (fork() == 0) {
        signal(SIGPIPE, SIG_DFL);
        for (int fd = 0; fd < 256; fd++)
            if (fd != pair[0]) close(fd);
        feeding ? feed(pair[0]) : drain(pair[0]);
    }
    close(pair[0]);
    k->fd = pair[1];
    if (k->flags) fcntl(k->fd, F_SETFL, fcntl(k->fd, F_GETFL) | k->flags);
}

static void *run(void *argument) {
    struct kind *k = argument;
    do {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        do clock_gettime(CLOCK_MONOTONIC, &b);
        while ((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec < work_us * 1000);
        long done = k->call(k);
        if (done < 0 && errno != EAGAIN) perror(k->name), exit(1);
        k->calls++;
        k->shorts += done >= 0 && done < k->asked;
    } while (!stop);
    return NULL;
}

int main(int count, char **words) {
    pthread_t threads[16];
    struct kind *chosen[16];
    char byte;
    int n = 0;
    signal(SIGPIPE, SIG_IGN);
    work_us = atol(words[1]);
    for (int i = 2; i < count; i++)
        for (unsigned j = 0; j < sizeof kinds / sizeof *kinds; j++)
            if (strcmp(kinds[j].name, words[i]) == 0) open_ends(chosen[n++] = &kinds[j]);
    for (int i = 0; i < n; i++) {
        pthread_create(&threads[i], NULL, run, chosen[i]);
        pthread_setname_np(threads[i], chosen[i]->name);
    }
    printf("ready\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    stop = 1;
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++)
        if (chosen[i]->fd >= 0) close(chosen[i]->fd);
    while (wait(NULL) > 0) {
    }
    for (int i = 0; i < n; i++) printf("%s %ld %ld\n", chosen[i]->name, chosen[i]->calls, chosen[i]->shorts);
    return 0;
}
