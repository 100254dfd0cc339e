/* Work in two functions until standard input closes, and write how much processor time each has taken.
 *
 * shares FILE: FILE holds two 64-bit numbers, the nanoseconds spent in heavy() and in light().
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink;

__attribute__((noinline)) static void heavy(void) {
    for (int i = 0; i < 300000; i++)
        sink = sink * 6364136223846793005ULL + 1442695040888963407ULL;
}

__attribute__((noinline)) static void light(void) {
    for (int i = 0; i < 100000; i++)
        sink ^= sink << 7;
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void *work(void *shared) {
    volatile int64_t *spent = shared;
    for (;;) {
        int64_t first = now();
        heavy();
        int64_t second = now();
        light();
        spent[0] += second - first;
        spent[1] += now() - second;
    }
}

int main(int argc, char **argv) {
    pthread_t thread;
    char byte;
    int file = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, 4096))
        return 1;
    void *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED || pthread_create(&thread, 0, work, shared))
        return 1;
    return read(0, &byte, 1) != 0;
}
