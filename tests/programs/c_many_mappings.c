/* 5,000 executable mappings of its own file, or as many as MANY says. With an argument they are made anew for ever,
   else it spins. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#ifndef MANY
#define MANY 5000
#endif
enum { PAGE = 4096 };

static volatile unsigned long turns;

static void map(char *room, int file, long which)
{
    mmap(room + which * 2 * PAGE, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, 0);
}

int main(int count, char **arguments)
{
    int file = open("/proc/self/exe", O_RDONLY);
    char *room = mmap(0, MANY * 2L * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    (void)arguments;
    for (long each = 0; each < MANY; each++)
        map(room, file, each);
    puts("ready");
    fflush(stdout);
    for (long each = 0;; each++) {
        if (count > 1)
            map(room, file, each % MANY);
        turns++;
    }
}
