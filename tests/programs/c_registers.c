/* Spins with known values in all registers that a function may keep, sp at a known place. Prints "ready SP". */
#include <stdio.h>
#include <unistd.h>

int main(void) {
    printf("ready\n");
    fflush(stdout);
    alarm(120);
    __asm__ volatile(
        "push %%rbp\n\t"
        "movabs $0x1010101010101010, %%rbx\n\t"
        "movabs $0x2020202020202020, %%rbp\n\t"
        "movabs $0x3030303030303030, %%r12\n\t"
        "movabs $0x4040404040404040, %%r13\n\t"
        "movabs $0x5050505050505050, %%r14\n\t"
        "movabs $0x6060606060606060, %%r15\n\t"
        "movabs $0x7070707070707070, %%rdi\n\t"
        "push %%rdi\n\t"
        "1: jmp 1b\n\t" ::
            : "memory");
    return 0;
}
