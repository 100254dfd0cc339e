// Threads that live for a moment each and change the process's mappings for all of it, which locks them.
//
//   mappings
//
// Until it is killed.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

enum { TIMES = 20, SIZE = 16 << 20 };

static char *memory;

__attribute__((noinline)) void change(void) {
    for (int i = 0; i < TIMES; i++) mprotect(memory, SIZE, i % 2 ? PROT_READ | PROT_WRITE : PROT_READ);
}

static void *live(void *unused) {
    change();
    return unused;
}

int main(void) {
    memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return 1;
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, live, NULL) != 0) return 1;
        pthread_join(thread, NULL);
    }
}
