/* Object files one after another at one address, each registered by the GDB JIT interface, run, and cancelled.

       gdb_loop MILLISECONDS OBJECT...

   An object's code is in .text and begins with a function that loops for as long as the number it is given lasts. A
   turn takes so many milliseconds of processor time. */
#define _GNU_SOURCE
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct jit_code_entry {
    struct jit_code_entry *next_entry, *prev_entry;
    const char *symfile_addr;
    uint64_t symfile_size;
};

struct jit_descriptor {
    uint32_t version, action_flag;
    struct jit_code_entry *relevant_entry, *first_entry;
};

struct jit_descriptor __jit_debug_descriptor = {1, 0, 0, 0};

__attribute__((noinline)) void __jit_debug_register_code(void)
{
    __asm__ volatile("" ::: "memory");
}

struct object {
    char *data;
    size_t size;
    const char *text;
    size_t text_size;
};

static struct object load(const char *path, char *place)
{
    struct object object = {0};
    FILE *file = fopen(path, "rb");
    if (!file)
        abort();
    fseek(file, 0, SEEK_END);
    object.size = (size_t)ftell(file);
    rewind(file);
    object.data = malloc(object.size);
    if (fread(object.data, 1, object.size, file) != object.size)
        abort();
    fclose(file);
    Elf64_Ehdr *header = (Elf64_Ehdr *)object.data;
    Elf64_Shdr *sections = (Elf64_Shdr *)(object.data + header->e_shoff);
    const char *names = object.data + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; i++) {
        const char *name = names + sections[i].sh_name;
        if (!strcmp(name, ".text")) {
            sections[i].sh_addr = (uintptr_t)place;
            object.text = object.data + sections[i].sh_offset;
            object.text_size = sections[i].sh_size;
        } else if (!strcmp(name, ".eh_frame")) {
            sections[i].sh_addr = (uintptr_t)place + 4096; /* where a loader would have put it */
        }
    }
    return object;
}

static void report(struct jit_code_entry *entry, uint32_t action)
{
    if (action == 1) {
        entry->next_entry = __jit_debug_descriptor.first_entry;
        __jit_debug_descriptor.first_entry = entry;
    } else {
        __jit_debug_descriptor.first_entry = entry->next_entry;
    }
    __jit_debug_descriptor.relevant_entry = entry;
    __jit_debug_descriptor.action_flag = action;
    __jit_debug_register_code();
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static volatile long sink;

/* Two callers, so that each made function's stack tells which one it was. */
__attribute__((noinline)) static void call_even(long (*made)(long), double until)
{
    while (now() < until)
        sink += made(20000);
}

__attribute__((noinline)) static void call_odd(long (*made)(long), double until)
{
    while (now() < until)
        sink += made(20000) + 1;
}

int main(int argc, char **argv)
{
    char *place = mmap(0, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double period = atoi(argv[1]) / 1e3;
    puts("ready");
    fflush(stdout);
    for (int turn = 0;; turn++) {
        struct object object = load(argv[2 + turn % (argc - 2)], place);
        struct jit_code_entry entry = {0, 0, object.data, object.size};
        memcpy(place, object.text, object.text_size);
        report(&entry, 1);
        (turn % 2 ? call_odd : call_even)((long (*)(long))(uintptr_t)place, now() + period);
        report(&entry, 2);
        free(object.data);
    }
}
