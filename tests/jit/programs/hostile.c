/* Lists for debuggers that lie: cycles, pointers to nowhere, lengths of 2^60, and one that a thread rewrites all the time.
   Its own code has no file either, so that the lists are looked at; beside it runs code that needs none of them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct jit_code_entry {
    struct jit_code_entry *next, *prev;
    const void *address;
    uint64_t size;
};

struct {
    uint32_t version, action;
    struct jit_code_entry *relevant, *first;
} __jit_debug_descriptor = {1, 0, 0, 0};

struct info {
    struct info *next, *prev;
    uint64_t start, end, gp;
    int32_t format, pad;
    uint64_t rest[6];
};

struct {
    uint32_t version, generation;
    struct info *first;
} _U_dyn_info_list;

static struct jit_code_entry entries[64];
static struct info infos[64];
static struct region {
    struct region *next;
    int32_t count;
    uint32_t ops;
    uint64_t op[8];
} regions[64];

static uint64_t seed = 88172645463325252ull;

static uint64_t any(void)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed;
}

static uint64_t bad_number(uint64_t good)
{
    static const uint64_t bad[] = {0, 1, 1ull << 60, ~0ull, 0xdead0000, 1ull << 63, 24, 4096};
    return any() % 3 ? good : bad[any() % 8];
}

static char *place;

static void lie(void)
{
    int i = (int)(any() % 64), other = (int)(any() % 64);
    entries[i].next = (void *)bad_number((uintptr_t)&entries[other]);
    entries[i].address = (void *)bad_number((uintptr_t)place);
    entries[i].size = bad_number(4096);
    __jit_debug_descriptor.first = (void *)bad_number((uintptr_t)&entries[any() % 64]);
    __jit_debug_descriptor.relevant = &entries[other];
    regions[i].next = (void *)bad_number((uintptr_t)&regions[other]);
    regions[i].count = (int32_t)any();
    regions[i].ops = (uint32_t)bad_number(3);
    regions[i].op[any() % 8] = any() & 0xffffffff0007000full;
    infos[i].next = (void *)bad_number((uintptr_t)&infos[other]);
    infos[i].start = bad_number((uintptr_t)place);
    infos[i].end = bad_number((uintptr_t)place + 64);
    infos[i].format = (int32_t)(any() % 7) - (any() % 50 == 0);
    infos[i].rest[any() % 6] = bad_number((uintptr_t)&regions[other]);
    _U_dyn_info_list.first = (void *)bad_number((uintptr_t)&infos[any() % 64]);
    _U_dyn_info_list.generation++;
}

static void *liar(void *unused)
{
    for (;;)
        lie();
    return unused;
}

static volatile long sink;

__attribute__((noinline)) static void honest(void)
{
    for (int i = 0; i < 1000; i++)
        sink += i;
}

__attribute__((noinline)) static void honest_caller(void)
{
    for (int i = 0; i < 1000; i++)
        honest();
    sink++;
}

int main(void)
{
    static const unsigned char code[] = {
        0x55, 0x48, 0x89, 0xe5,                         /* push %rbp; mov %rsp,%rbp */
        0xb9, 0x00, 0x00, 0x10, 0x00, 0xff, 0xc9, 0x75, 0xfc, /* count */
        0x5d, 0xc3,                                     /* pop %rbp; ret */
    };
    place = mmap(0, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(place, code, sizeof code);
    memcpy(place + 2048, "\177ELF\2\1\1", 7);
    pthread_t thread;
    for (int i = 0; i < 1000; i++)
        lie();
    pthread_create(&thread, 0, liar, 0);
    puts("ready");
    fflush(stdout);
    for (;;) {
        ((void (*)(void))(uintptr_t)place)();
        honest_caller();
    }
}
