/* Deep stacks and other stacks. Usage: c_stacks deep DEPTH | alternate DEPTH. Prints "ready ADDRESS", the address of
 * MARK in the outermost frame, then spins in the innermost one (in a handler on its own stack).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MARK 0x5ca1ab1e5ca1ab1eul

static int alternate;

static void spin(int number) {
    (void)number;
    for (;;) __asm__ volatile("");
}

__attribute__((noinline)) static int down(int depth) {
    volatile char room[64];
    room[0] = depth;
    if (depth == 0) {
        if (alternate) raise(SIGUSR1);
        spin(0);
    }
    return down(depth - 1) + room[0];
}

int main(int count, char **words) {
    volatile unsigned long mark = MARK;
    stack_t other = {.ss_size = 65536};
    struct sigaction action = {.sa_handler = spin, .sa_flags = SA_ONSTACK};
    (void)count;
    alarm(120);
    alternate = strcmp(words[1], "alternate") == 0;
    other.ss_sp = mmap(NULL, other.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaltstack(&other, NULL);
    sigaction(SIGUSR1, &action, NULL);
    printf("ready %p\n", (void *)&mark);
    fflush(stdout);
    return down(atoi(words[2])) + (int)mark;
}
