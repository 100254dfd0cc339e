/* Naps for some microseconds in two places in turn, with a different word at sp in each. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define NAP(word)                                                                            \
    __asm__ volatile(                                                                        \
        "sub $128, %%rsp\n\tpush %[magic]\n\tsyscall\n\tadd $136, %%rsp"                     \
        : "+a"(number)                                                                       \
        : [magic] "r"(word), "D"(&nap), "S"(0)                                               \
        : "rcx", "r11", "memory")

int main(void) {
    struct timespec nap = {0, 30000};
    alarm(120);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        long number = 35;
        NAP(0x0a0a0a0a0a0a0a0al);
        for (volatile int i = 0; i < 2000; i++) {
        }
        number = 35;
        NAP(0x0b0b0b0b0b0b0b0bl);
    }
}
