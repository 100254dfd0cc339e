/* Prints where its functions are, then waits for its input to end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef WAYS
#define WAYS 1
#endif

__attribute__((noinline)) int where_inner(int x) { return x * WAYS + 1; }

/* A function with pages of its own, which can be moved to anonymous memory. */
__attribute__((noinline, section(".text.moved"), aligned(4096))) int moved(int x)
{
    char room[4096];
    memset(room, x, sizeof room);
    return room[x & 1023] + where_inner(x);
}

static void move_text(void)
{
    char *page = (char *)((unsigned long)moved & -4096UL), copy[4096];
    memcpy(copy, page, sizeof copy);
    if (mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        _exit(3);
    memcpy(page, copy, sizeof copy);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "move")) {
            move_text();
        } else if (!strncmp(argv[i], "again=", 6)) { /* map this file offset of ourselves a second time */
            unsigned long offset;
            sscanf(argv[i] + 6, "%lx", &offset);
            int fd = open("/proc/self/exe", O_RDONLY);
            printf("again %p\n", mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, offset));
        } else { /* a library, loaded twice */
            for (int n = 0; n < 2; n++) {
                void *library = dlmopen(n ? LM_ID_NEWLM : LM_ID_BASE, argv[i], RTLD_NOW);
                if (!library) {
                    puts(dlerror());
                    return 2;
                }
                printf("library%d %p\n", n, dlsym(library, "in_library"));
            }
        }
    }
    printf("main %p\nmoved %p\nwhere_inner %p\nready\n", (void *)main, (void *)moved, (void *)where_inner);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        moved(byte);
    return 0;
}
