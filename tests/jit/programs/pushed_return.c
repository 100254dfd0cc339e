/* Generated code with frame records, one of whose return addresses no call has left: it is pushed, then control jumps. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define _GNU_SOURCE
#include <sys/mman.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS 0x20
#endif

static void (*code)(void);
static volatile long sink;

__attribute__((noinline)) static void enter(void)
{
    code();
    sink++;
}

int main(void)
{
    static const unsigned char bytes[] = {
        0x55, 0x48, 0x89, 0xe5,                               /*  0 push %rbp; mov %rsp,%rbp */
        0x48, 0x8d, 0x05, 0x06, 0x00, 0x00, 0x00,             /*  4 lea 17(%rip -> 17),%rax */
        0x50,                                                 /* 11 push %rax */
        0xe9, 0x0f, 0x00, 0x00, 0x00,                         /* 12 jmp 32 */
        0x0f, 0x1f, 0x00,                                     /* 17 nop: control comes back here */
        0x5d, 0xc3,                                           /* 20 pop %rbp; ret */
        0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
        0x55, 0x48, 0x89, 0xe5,                               /* 32 push %rbp; mov %rsp,%rbp */
        0xb9, 0x00, 0x00, 0x10, 0x00, 0x83, 0xe9, 0x01, 0x75, 0xfb, /* count down */
        0x5d, 0xc3,                                           /* pop %rbp; ret to 17 */
    };
    void *place = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(place, bytes, sizeof bytes);
    code = (void (*)(void))(uintptr_t)place;
    puts("ready");
    fflush(stdout);
    for (;;)
        enter();
}
