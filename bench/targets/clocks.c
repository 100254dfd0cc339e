/* Threads that work or nap, and record their own processor time and waits, until the process is killed.
 *
 * gcc -O2 -g -pthread -o clocks clocks.c
 * clocks FILE: FILE becomes rows of four 64-bit numbers (kind, tid, a, b). Times are in ns since the epoch. Kind 1: at
 * time a the thread had used b ns of processor time. Kind 2: the thread waited from time a to b. Rows of kind 0 are not
 * complete yet.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_ROWS (1 << 20)
#define STEP_NS 1000000
#define NAP_NS 20000000

struct row {
    _Atomic int64_t kind;
    int64_t tid, a, b;
};
static struct row *rows;
static atomic_long used;
static volatile uint64_t sink;

static int64_t now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void write_row(int64_t kind, int64_t a, int64_t b) {
    long at = atomic_fetch_add(&used, 1);
    if (at >= MAX_ROWS)
        return;
    rows[at].tid = syscall(SYS_gettid);
    rows[at].a = a;
    rows[at].b = b;
    rows[at].kind = kind;
}

__attribute__((noinline)) static void parse(void) {
    for (int i = 0; i < 3000; i++)
        sink = sink * 6364136223846793005ULL + 1442695040888963407ULL;
}

__attribute__((noinline)) static void render(void) {
    for (int i = 0; i < 1000; i++)
        sink = sink * 6364136223846793005ULL + 1442695040888963407ULL;
}

__attribute__((noinline)) static void work(int64_t ns) {
    for (int64_t until = now(CLOCK_THREAD_CPUTIME_ID) + ns; now(CLOCK_THREAD_CPUTIME_ID) < until;) {
        parse();
        render();
    }
    write_row(1, now(CLOCK_REALTIME), now(CLOCK_THREAD_CPUTIME_ID));
}

static void *nap_again_and_again(void *unused) {
    struct timespec nap = {0, NAP_NS};
    for (;;) {
        work(STEP_NS);
        int64_t begin = now(CLOCK_REALTIME);
        nanosleep(&nap, 0);
        write_row(2, begin, now(CLOCK_REALTIME));
    }
    return unused;
}

int main(int argc, char **argv) {
    int file = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, MAX_ROWS * sizeof(struct row)))
        return 1;
    rows = mmap(0, MAX_ROWS * sizeof(struct row), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    pthread_t thread;
    if (rows == MAP_FAILED || pthread_create(&thread, 0, nap_again_and_again, 0))
        return 1;
    for (;;)
        work(STEP_NS);
}
