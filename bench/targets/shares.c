/* A program whose functions have known shares of its time, for comparisons of recordings. `slowed` is a fifth of the
 * work; -DSLOWED=110 makes it a tenth slower.
 *
 * shares FILE SECONDS: each round of all functions is one unit of work. The number of units is in FILE as a 64-bit
 * integer.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef SLOWED
#define SLOWED 100
#endif

static volatile uint64_t sink;

#define PART(name, permille) \
    __attribute__((noinline, noclone)) void name(void) \
    { \
        uint64_t value = sink | 1; \
        for (uint64_t i = 0; i < (permille) * 60ULL; i++) \
            value = value * 6364136223846793005ULL + 1442695040888963407ULL; \
        sink = value; \
    }

PART(parse, 300)
PART(render, 150)
PART(encode, 100)
PART(compress, 80)
PART(lookup, 60)
PART(copy, 40)
PART(hash, 30)
PART(escape, 20)
PART(quote, 10)
PART(trim, 6)
PART(check, 3)
PART(note, 1)
PART(slowed, 2 * SLOWED)

__attribute__((noinline, noclone)) void input(void) { parse(); lookup(); trim(); slowed(); sink++; }
__attribute__((noinline, noclone)) void output(void) { render(); escape(); quote(); encode(); compress(); sink++; }
__attribute__((noinline, noclone)) void rest(void) { copy(); hash(); check(); note(); sink++; }

int main(int argc, char **argv)
{
    int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (argc < 3 || ftruncate(file, sizeof(uint64_t)))
        return 1;
    volatile uint64_t *work = mmap(0, sizeof *work, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    time_t end = time(0) + atoi(argv[2]);
    while (time(0) < end) {
        input();
        output();
        rest();
        ++*work;
    }
    return 0;
}
