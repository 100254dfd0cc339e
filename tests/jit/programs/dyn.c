/* Code without a file, registered with libunwind's dynamic unwind-info in all its formats.

       dyn run|spin|loop      run: through every piece once; spin: stay at the innermost; loop: register and cancel for ever

   PLAIN: with the structures as they were before libunwind 1.6 and are again after 1.8. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <libunwind.h>

#ifdef PLAIN
struct plain_info {
    struct plain_info *next, *prev;
    unw_word_t start_ip, end_ip, gp;
    int32_t format, pad;
    union {
        unw_dyn_proc_info_t pi;
        unw_dyn_table_info_t ti;
        unw_dyn_remote_table_info_t rti;
    } u;
};
typedef struct plain_info info_t;
#else
typedef unw_dyn_info_t info_t;
#endif

enum { RBX = 3, RBP = 6, RSP = 7, R12 = 12, R13 = 13, RIP = 16 };

struct link {
    void (*call)(struct link *);
    void (*code)(struct link *);
    struct link *next;
    int cold;
};

static volatile long sink;
static int spinning;

__attribute__((noinline)) static void innermost(void)
{
    do
        for (int i = 0; i < 50; i++)
            sink += i;
    while (spinning);
}

__attribute__((noinline)) static void call_next(struct link *link)
{
    if (link->next)
        link->next->code(link->next);
    else
        innermost();
    sink++;
}

static char *place;
static struct link *chain;

static struct link *add(const char *code, const char *end)
{
    struct link *link = calloc(1, sizeof *link);
    place = (char *)(((uintptr_t)place + 31) & ~31ul);
    memcpy(place, code, (size_t)(end - code));
    link->call = call_next;
    link->code = (void (*)(struct link *))(uintptr_t)place;
    link->next = chain;
    place += end - code;
    chain = link;
    return link;
}

static info_t *info(const char *name, const char *code, const char *end, int format)
{
    struct link *link = add(code, end);
    info_t *made = calloc(1, sizeof *made);
    made->start_ip = (uintptr_t)link->code;
    made->end_ip = made->start_ip + (uintptr_t)(end - code);
    made->format = format;
    made->u.pi.name_ptr = (uintptr_t)name;
    return made;
}

static void enlist(info_t *made)
{
    _U_dyn_register((unw_dyn_info_t *)(void *)made);
}

static unw_dyn_region_info_t *region(unw_dyn_region_info_t *next, long count, int ops, const unw_dyn_op_t *op)
{
    unw_dyn_region_info_t *made = calloc(1, (size_t)_U_dyn_region_info_size(0) + 16 * (size_t)(ops + 2));
    made->next = next;
    made->insn_count = (int32_t)count;
    made->op_count = (uint32_t)ops + 2;
    memcpy(made->op, op, (size_t)ops * sizeof *op);
    _U_dyn_op_stop(&made->op[ops]);
    made->op[ops + 1].tag = 99; /* allocated, never filled */
    return made;
}

static void procedure(const char *name, const char *code, const char *end, unw_dyn_region_info_t *regions)
{
    info_t *made = info(name, code, end, UNW_INFO_FORMAT_DYNAMIC);
    made->u.pi.regions = regions;
    enlist(made);
}

#define OPS(...) (sizeof((unw_dyn_op_t[]){__VA_ARGS__}) / sizeof(unw_dyn_op_t)), (unw_dyn_op_t[]){__VA_ARGS__}
#define OP(tag, when, reg, val) _U_dyn_op(UNW_DYN_##tag, _U_QP_TRUE, (int32_t)(when), (reg), (unw_word_t)(val))
#define LABELS(name, n) extern const char name[], name##_end[], name##_1[], name##_2[], name##_3[], name##_4[];
LABELS(plain, 8) extern const char plain_5[], plain_6[], plain_7[], plain_8[];
LABELS(aligned, 5) extern const char aligned_5[];
LABELS(kept, 9) extern const char kept_5[], kept_6[], kept_7[], kept_8[], kept_9[];
LABELS(early, 9) extern const char early_5[], early_6[], early_7[], early_8[], early_9[];
extern const char leaf[], leaf_end[], original[], original_end[];

/* Every sp movement as a directive, listed backwards. */
static void by_directives(void)
{
    procedure("by_directives", plain, plain_end, region(0, plain_end - plain, OPS(
        OP(ADD, plain_7 - plain, RSP, 8), OP(ADD, plain_6 - plain, RSP, 8), OP(ADD, plain_5 - plain, RSP, 0x58),
        OP(SAVE_REG, plain_7 - plain, RBX, RBX), OP(SAVE_REG, plain_6 - plain, RBP, RBP),
        OP(ADD, plain_3 - plain, RSP, -0x58),
        OP(SPILL_SP_REL, plain_2 - plain, RBP, 0), OP(ADD, plain_2 - plain, RSP, -8),
        OP(SPILL_SP_REL, plain_1 - plain, RBX, 0), OP(ADD, plain_1 - plain, RSP, -8))));
}

/* Two procedures with one list: prologue, gap, and an epilogue counted from the end. `when` is the last byte here. */
static void by_shared_regions(void)
{
    unw_dyn_region_info_t *last = region(0, -(plain_end - plain_5), OPS(
        OP(ADD, plain_6 - plain_5 - 1, RSP, 0x58), OP(ADD, plain_7 - plain_5 - 1, RSP, 8),
        OP(POP_FRAMES, plain_8 - plain_5 - 1, 0, 2)));
    unw_dyn_region_info_t *first = region(last, plain_4 - plain, OPS(
        OP(ADD, plain_2 - plain - 1, RSP, -8), OP(SPILL_SP_REL, plain_2 - plain - 1, RBX, 0),
        OP(ADD, plain_3 - plain - 1, RSP, -8), OP(SPILL_SP_REL, plain_3 - plain - 1, RBP, 0),
        OP(ADD, plain_4 - plain - 1, RSP, -0x58)));
    procedure("by_shared_regions_1", plain, plain_end, first);
    procedure("by_shared_regions_2", plain, plain_end, first);
}

static void by_frame_pointer(void)
{
    unw_dyn_region_info_t *last = region(0, aligned_end - aligned_5, 0, 0);
    procedure("by_frame_pointer", aligned, aligned_end, region(last, aligned_5 - aligned, OPS(
        OP(ADD, 0, RSP, -8), OP(SPILL_SP_REL, 0, RBP, 0), OP(SAVE_REG, aligned_2 - aligned, RSP, RBP),
        OP(SPILL_FP_REL, aligned_3 - aligned, RBX, -8), OP(ADD, aligned_3 - aligned, RSP, -8),
        OP(POP_FRAMES, aligned_5 - aligned - 1, 0, 1))));
}

static void by_other_register(void)
{
    procedure("by_other_register", kept, kept_end, region(0, kept_end - kept, OPS(
        OP(ADD, 0, RSP, -8), OP(SPILL_SP_REL, 0, R12, 0),
        OP(ADD, kept_2 - kept, RSP, -8), OP(SPILL_SP_REL, kept_2 - kept, R13, 0),
        OP(SAVE_REG, kept_3 - kept, RSP, R12), OP(SAVE_REG, kept_4 - kept, RBX, R13),
        OP(SAVE_REG, kept_6 - kept - 1, RBX, RBX), OP(SAVE_REG, kept_6 - kept, RSP, RSP),
        OP(ADD, kept_7 - kept, RSP, 8), OP(SAVE_REG, kept_7 - kept, R13, R13),
        OP(ADD, kept_8 - kept, RSP, 8), OP(SAVE_REG, kept_8 - kept, R12, R12))));
}

/* The part behind the early return has the frame again: undone=1 by what the epilogue's region began with, undone=2 by
   a label. */
static void by_early_return(int undone)
{
    unw_dyn_region_info_t *last = region(0, early_end - early_8, OPS(OP(COPY_STATE, -1, 0, 100402)));
    if (undone == 1)
        last->op[0].tag = UNW_DYN_STOP;
    unw_dyn_region_info_t *middle = region(last, early_8 - early_5, OPS(
        OP(ADD, early_5 - early_5, RSP, 0x30), OP(POP_FRAMES, early_6 - early_5, 0, undone)));
    unw_dyn_region_info_t *first = region(middle, early_5 - early, OPS(
        OP(ADD, 0, RSP, -8), OP(SPILL_SP_REL, 0, RBX, 0), OP(ADD, early_2 - early, RSP, -0x30),
        OP(LABEL_STATE, -1, 0, 100402)));
    procedure(undone == 1 ? "by_early_return_1" : "by_early_return_2", early, early_end, first);
    chain->cold = 1;
}

/* The call itself is described, by an empty region that comes first. */
static void by_call(void)
{
    unw_dyn_region_info_t *body = region(0, plain_end - plain, OPS(
        OP(ADD, plain_1 - plain, RSP, -8), OP(SPILL_SP_REL, plain_1 - plain, RBX, 0),
        OP(ADD, plain_2 - plain, RSP, -8), OP(SPILL_SP_REL, plain_2 - plain, RBP, 0),
        OP(ADD, plain_3 - plain, RSP, -0x58), OP(ADD, plain_5 - plain, RSP, 0x58),
        OP(ADD, plain_6 - plain, RSP, 8), OP(SAVE_REG, plain_6 - plain, RBP, RBP),
        OP(ADD, plain_7 - plain, RSP, 8), OP(SAVE_REG, plain_7 - plain, RBX, RBX)));
    procedure("by_call", plain, plain_end, region(body, 0, OPS(OP(ADD, 0, RSP, -8), OP(SPILL_SP_REL, 0, RIP, 0))));
}

static void by_alias(void)
{
    procedure("by_alias", original, original_end, region(0, 256, OPS(OP(ALIAS, -1, 0, (uintptr_t)original))));
    const unw_word_t clone = (uintptr_t)chain->code;
    procedure("by_alias_of_alias", original, original_end, region(0, 256, OPS(OP(ALIAS, -1, 0, clone))));
}

/* CIE and FDE of `plain`, as in .eh_frame or as in .debug_frame. */
static const unsigned char rows[] = {
    0x41, 0x0e, 16, 0x83, 2, 0x41, 0x0e, 24, 0x86, 3, 0x44, 0x0e, 112, 0, 0,
};

static char *frames(int eh, unw_word_t start, unw_word_t size, int *fde)
{
    static const unsigned char instructions[] = {0x0c, 7, 8, 0x90, 1};
    unsigned char *section = calloc(1, 256), *at = section;
    *(uint32_t *)at = eh ? 20 : 20, at += 4;
    *(uint32_t *)at = eh ? 0 : 0xffffffff, at += 4;
    *at++ = eh ? 1 : 3;
    if (eh)
        *at++ = 'z', *at++ = 'R';
    *at++ = 0, *at++ = 1, *at++ = 0x78, *at++ = 16;
    if (eh)
        *at++ = 1, *at++ = 0; /* absolute pointers */
    memcpy(at, instructions, sizeof instructions);
    at = section + 24;
    *fde = 24;
    unsigned char advance[] = {(unsigned char)(plain_6 - plain_4)};
    *(uint32_t *)at = 64, at += 4;
    *(uint32_t *)at = eh ? (uint32_t)(at - section) : 0, at += 4;
    *(unw_word_t *)at = start, at += 8;
    *(unw_word_t *)at = size, at += 8;
    if (eh)
        *at++ = 0;
    memcpy(at, rows, sizeof rows - 2);
    at += sizeof rows - 2;
    *at++ = 0x02, *at++ = advance[0], *at++ = 0x0e, *at++ = 24; /* advance, def_cfa_offset */
    *at++ = 0x41, *at++ = 0x0e, *at++ = 16, *at++ = 0xc6;       /* restore */
    *at++ = 0x41, *at++ = 0x0e, *at++ = 8, *at++ = 0xc3;
    return (char *)section;
}

struct debug_frame_list { /* include/dwarf.h of libunwind */
    unw_word_t start, end;
    char *debug_frame;
    size_t debug_frame_size;
    void *index;
    size_t index_size;
    void *next;
};

static void by_table(int format)
{
    static const char *names[] = {"", "by_table", "by_remote_table", "", "by_ip_offset", "by_remote_table_64"};
    info_t *made = info(names[format], plain, plain_end, format);
    unw_word_t start = made->start_ip, size = made->end_ip - made->start_ip, base = 0x10000;
    int fde = 0;
    char *section = frames(format != UNW_INFO_FORMAT_TABLE, format == UNW_INFO_FORMAT_TABLE ? start - base : start,
                           size, &fde);
    if (format == UNW_INFO_FORMAT_TABLE) {
        struct debug_frame_list *list = calloc(1, sizeof *list);
        *list = (struct debug_frame_list){start, made->end_ip, section, (size_t)fde + 68, 0, 0, 0};
        made->u.ti.segbase = base;
        made->u.ti.table_len = sizeof *list / sizeof(unw_word_t);
        made->u.ti.table_data = (unw_word_t *)list;
    } else if (format == 5) {
        int64_t *pairs = calloc(3, 16);
        made->u.rti.segbase = (uintptr_t)section;
        for (int i = 0; i < 3; i++) /* neighbours whose code is elsewhere */
            pairs[2 * i] = (int64_t)start - (int64_t)(uintptr_t)section + (i - 1) * 4096, pairs[2 * i + 1] = fde;
        made->u.rti.table_len = 6;
        made->u.rti.table_data = (uintptr_t)pairs;
    } else {
        /* 32-bit offsets reach no further than 2 GiB: the section stands beside the code */
        int32_t *pairs = (int32_t *)(place = (char *)(((uintptr_t)place + 15) & ~15ul)), offset;
        memcpy(place + 64, section, 128);
        section = place + 64;
        place += 256;
        *(uint32_t *)(section + 28) = 28;
        offset = format == UNW_INFO_FORMAT_IP_OFFSET ? 0 : (int32_t)(start - (uintptr_t)section);
        for (int i = 0; i < 3; i++) /* unsorted, as Julia's may be */
            pairs[2 * i] = offset + (1 - i) * 4096, pairs[2 * i + 1] = fde;
        made->u.rti.segbase = (uintptr_t)section;
        made->u.rti.table_len = 3;
        made->u.rti.table_data = (uintptr_t)pairs;
    }
    enlist(made);
}

static void everything(void)
{
    by_directives();
    by_shared_regions();
    by_frame_pointer();
    by_other_register();
    by_early_return(1);
    by_early_return(2);
    by_call();
    by_alias();
    procedure("by_default", leaf, leaf_end, 0);
    by_table(UNW_INFO_FORMAT_TABLE);
    by_table(UNW_INFO_FORMAT_REMOTE_TABLE);
    by_table(UNW_INFO_FORMAT_IP_OFFSET);
    by_table(5);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void take_turns(char *memory, double period)
{
    for (int turn = 0;; turn++) {
        place = memory;
        chain = 0;
        info_t *made;
        if (turn % 2) {
            made = info("odd_turn", original, original_end, UNW_INFO_FORMAT_DYNAMIC);
            made->u.pi.regions = region(0, 256, OPS(OP(ALIAS, -1, 0, (uintptr_t)original)));
        } else {
            made = info("even_turn", aligned, aligned_end, UNW_INFO_FORMAT_DYNAMIC);
            made->u.pi.regions = region(0, aligned_end - aligned, OPS(
                OP(ADD, 0, RSP, -8), OP(SPILL_SP_REL, 0, RBP, 0), OP(SAVE_REG, aligned_2 - aligned, RSP, RBP)));
        }
        enlist(made);
        for (double until = now() + period; now() < until;)
            for (int i = 0; i < 2000; i++)
                chain->code(chain);
        _U_dyn_cancel((unw_dyn_info_t *)(void *)made);
        free(made->u.pi.regions);
        free(made);
        free(chain);
    }
}

int main(int argc, char **argv)
{
    char *memory = place = mmap(0, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (argc > 1 && !strcmp(argv[1], "loop")) {
        puts("ready");
        fflush(stdout);
        take_turns(memory, argc > 2 ? atoi(argv[2]) / 1e3 : 0.05);
    }
    everything();
    spinning = argc > 1 && !strcmp(argv[1], "spin");
    if (spinning) {
        puts("ready");
        fflush(stdout);
    }
    chain->code(chain);
    return 0;
}
