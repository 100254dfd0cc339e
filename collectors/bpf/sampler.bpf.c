/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The BPF program that samples a thread at one instant: registers, stack, and the frames of its interpreter.
 *
 * It runs at overflows of a perf event on each processor (PERF_EVENT_IOC_SET_BPF), in interrupt context, and where threads
 * leave their processors, in the scheduler. No page fault is served there, so memory that is swapped out cannot be read.
 * All work is bounded. Interrupts are off in both cases, so each processor needs only one scratch space. The program
 * copies addresses; the reader of the ring reads names later.
 */
#include "sampler.h"

#define SEC(name) __attribute__((section(name), used))
#define inline_ static inline __attribute__((always_inline))

/* Helpers of the kernel by number (include/uapi/linux/bpf.h). */
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*ktime_get_ns)(void) = (void *)5;
static u32 (*get_prandom_u32)(void) = (void *)7;
static u32 (*get_smp_processor_id)(void) = (void *)8;
static u64 (*get_current_pid_tgid)(void) = (void *)14;
static long (*get_current_comm)(void *to, u32 size) = (void *)16;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static long (*get_stack)(void *context, void *to, u32 size, u64 flags) = (void *)67;
static long (*probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*get_ns_current_pid_tgid)(u64 dev, u64 ino, void *to, u32 size) = (void *)120;
static void *(*get_current_task_btf)(void) = (void *)158;
static void *(*task_pt_regs)(void *task) = (void *)175;
static long (*find_vma)(void *task, u64 address, void *callback, void *context, u64 flags) = (void *)180;
static long (*loop)(u32 times, void *callback, void *context, u64 flags) = (void *)181;
static u64 (*ringbuf_query)(void *ring, u64 what) = (void *)134;
static void *(*ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*ringbuf_discard)(void *data, u64 flags) = (void *)133;
static long (*ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static long (*ringbuf_reserve_dynptr)(void *ring, u32 size, u64 flags, void *pointer) = (void *)198;
static void (*ringbuf_submit_dynptr)(void *pointer, u64 flags) = (void *)199;
static void (*ringbuf_discard_dynptr)(void *pointer, u64 flags) = (void *)200;
static long (*dynptr_write)(void *pointer, u32 at, void *from, u32 size, u64 flags) = (void *)202;
static void *(*dynptr_data)(void *pointer, u32 at, u32 size) = (void *)203;

struct map {
	u32 type;
	u32 key_size;
	u32 value_size;
	u32 max_entries;
	u32 flags;
};
enum { HASH = 1, ARRAY = 2, PERCPU_ARRAY = 6, LRU_HASH = 9, RINGBUF = 27 };

/* Processes of the recording by tgid. Threads of other processes are not sampled. */
struct map SEC("maps") processes = {HASH, 4, sizeof(struct process), 1 << 16, 0};
/* Threads of these processes by tid. User space fills it, and the program stores thread states that it has found. */
struct map SEC("maps") threads = {LRU_HASH, 4, sizeof(struct thread), 1 << 16, 0};
/* Number of mapped code pages by tgid. If it has changed at a sample, the reader must check the process. */
struct map SEC("maps") code_pages = {LRU_HASH, 4, 8, 1 << 16, 0};
struct map SEC("maps") layouts = {ARRAY, 4, sizeof(struct layout), 64, 0};
/*
 * A hash table of code objects whose texts were in a record: process, address and head as one word. If two code objects have
 * the same slot, both are sent repeatedly.
 */
struct map SEC("maps") sent_codes = {ARRAY, 4, 8 * MOST_SENT, 1, 0};
struct map SEC("maps") limits = {ARRAY, 4, sizeof(struct limits), 1, 0};
/* Waits of threads, by the address of the task, because the scheduler's tracepoints give no other key. */
struct map SEC("maps") waits = {HASH, 8, sizeof(struct wait), 1 << 16, 0};
/* The ring buffer for records. max_entries is set before the load. */
struct map SEC("maps") ring = {RINGBUF, 0, 0, 1 << 22, 0};
/* Hashes of the pages of a long stack, as of its last record. */
struct known_pages {
	u64 number; /* as in struct sent_pages */
	u64 failed; /* number of records that lacked pages: after such a record no page is known */
	u64 hashes[MOST_PAGES];
};
struct map SEC("maps") known_stacks = {LRU_HASH, sizeof(struct stack_key), sizeof(struct known_pages), 512, 0};
/* Counters by reason, followed by a histogram of run times with one word for each power of two of nanoseconds. */
struct map SEC("maps") counters = {PERCPU_ARRAY, 4, 8 * (REASONS + 32), 1, 0};

/* The state of all loops. It is not on the stack, because the verifier tracks stack contents through each iteration. */
struct walk {
	u64 frame;  /* the next interpreter frame to read */
	u64 stop;   /* address of the frame at which the chain ends */
	u64 cframe; /* the next CFrame to read */
	u64 root;
	u64 interpreter; /* the next interpreter to search for thread states */
	u64 state;       /* the next thread state */
	u64 states[MOST_STATES]; /* thread states of the thread, one for each interpreter that it runs */
	u32 known;               /* number of states */
	u32 several;             /* the process has several interpreters */
	u32 frames;
	u32 anchors;
	u32 texts;
	u32 tgid;
	u32 broken;
	u32 tid;
	u32 looks;        /* number of samples on this processor */
	u32 window_bytes; /* number of bytes of the interpreter's memory that were read from `window` on */
	u64 window;
	u64 last; /* the previous frame */
	u32 own_frames;  /* number of frames of the previous thread states */
	u32 own_anchors;
	u32 lacks; /* reason for which CFrames are missing, 0: none is */
	u32 nth; /* index of the innermost CFrame whose frames are known */
	u32 unread; /* reason for which the frames of the innermost CFrame were not all read */
	u32 rows;  /* number of rows with these frames */
	u64 first;  /* the first of these frames */
	u32 ended;  /* the innermost evaluator call has ended, at a frame whose caller is `outer` */
	u64 outer;
	u32 at; /* offset in the record */
	u32 left;
	u32 guessed; /* the stack's end is a guess: the copy ends at the first unreadable page above that of sp */
	u32 zone;    /* bytes below sp that are copied, too */
	u64 from;
	u64 deadline;
	u64 holes;
	/* search for suspended evaluator calls on the stack (greenlets) */
	u64 mark;  /* instruction and code of entry frames */
	u64 code;
	u64 stack; /* bounds of the searched part of the stack */
	u64 stack_end;
	u64 heap;  /* an address near which frames are */
	u64 inner; /* the entry frame inside of the present one */
	u64 entry;
	u64 part; /* address of the part of the stack that is in the window */
	u64 link;  /* the next frame of an evaluator call */
	u64 best;  /* the innermost frame of the longest chain to the entry frame */
	u64 slot;  /* the stack word that pointed to it, or to a frame that calls it */
	u64 calls; /* the frame whose callee was searched */
	u32 longest;
	u32 length;
	u32 leads; /* the frames lead to the entry frame */
	u32 searched; /* the whole stack was searched for words that point to frames */
	u32 entries;
	u32 naming;
	u32 tried; /* number of these words that were tried */
	u32 kept;  /* slots that this processor has found */
	u64 low; /* bounds of the interrupted stack, and the lowest address in it to which a word refers */
	u64 high;
	u64 lowest;
	/* tasks that await the running one */
	u64 running;   /* the frame of the running task's outermost coroutine */
	u64 task;      /* the task whose awaiter is searched next */
	u64 coroutine; /* the next coroutine to read */
	u64 kind;      /* the type of coroutines */
	u64 table;     /* address of a set's slots */
	u64 member;    /* the last member that was found */
	u32 slots;
	u32 members; /* number of members that were found */
	u32 unknown; /* something of a task cannot be read */
	/* Go */
	u64 own_end; /* end of the stack that the thread is on; 0: not known */
	u64 goroutine_low; /* bounds of its goroutine's stack, if it has left that */
	u64 goroutine_high;
	u64 goroutine_from; /* the lowest address that is needed of that */
	u64 labels_at; /* offset of the address of a goroutine's labels, 0: none are wanted */
	u64 labels;    /* where that address is, 0: nowhere */
	u64 scheduler_from; /* the same as goroutine_from for the scheduler's stack, if a signal interrupted that; 0: none did */
	u64 scheduler_high;
	u64 end; /* end of the stack that is copied */
	u64 below; /* address and size of the second copy, see record.below_base */
	u64 below_size;
	u64 size;
	u64 goroutine_size;
	u32 sure; /* the memory between sp and `end` is only this stack */
	u32 unread_page;
	u64 salt;      /* salt of the hashes of the stack's pages */
	u64 parts[4];  /* parts of the hash of one page */
	u64 run_end;   /* end of the first copy */
	u64 run_ended;
	u64 later;     /* number of bytes of changed pages above the first copy */
	u32 sends;     /* unchanged pages are left out of the record */
};

/* Constants that user space sets before the load. */
const volatile u32 everything = 0;   /* all processes are recorded */
const volatile u32 overflows_per_sample = 0; /* in units of 1/OVERFLOW; 0: a sample at each overflow of the event */
const volatile u32 follow = 0;       /* children of recorded processes are recorded, too */
const volatile u32 tgid_of_task = 0; /* offset in struct task_struct */
const volatile u32 own_tgid = 0;     /* tgid of the profiler, which is not recorded */
const volatile u32 pid_of_task = 0;  /* offset in struct task_struct */
const volatile u32 memory_of_task = 0; /* offset in struct task_struct */
const volatile u32 code_of_memory = 0; /* offset in struct mm_struct of the number of code pages */
const volatile u32 stack_of_memory = 0; /* offset in struct mm_struct of the start of the main thread's stack */
const volatile u32 pointer_of_task = 0; /* offset in struct task_struct of the thread pointer */
const volatile u32 kernel_stacks = 0; /* kernel frames are copied, too */
const volatile u32 locks = 0;        /* only waits for futexes are recorded */
const volatile u32 wakers = 0;       /* threads that wake others are recorded, with their stacks */
const volatile u32 fill = 0xFFFFFFFF; /* number of bytes in the ring from which on its reader is woken */
const volatile u32 seeks_waiting = 0; /* suspended evaluator calls on stacks are searched (greenlets) */
const volatile u32 follows_tasks = 0; /* coroutines of asyncio tasks that await the running one are copied */
const volatile u32 hash_salt = 0;    /* a random number */
const volatile u32 runnable = 0;     /* waits of preempted threads are recorded, too */

struct namespaced {
	u32 pid;
	u32 tgid;
};

#if defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 x[31], sp, pc, pstate;
	u64 orig_x0; /* the fields from here on are missing in the registers of a perf event */
	u64 syscallno; /* in its low half */
};
#define FROM_USER(regs) (((regs)->pstate & 0xf) == 0)
#define OF_C_LIBRARY(pointer) 1
#define SP 31
#define RED_ZONE 0
/* The system call that it is in, -1: it came in another way. */
#define CALL(regs) ((s32)(regs)->CALL_FIELD)
#define CALL_FIELD syscallno
#define FIRST_FIELD orig_x0
#define WAITS_FOR_FUTEX(call) ((call) == 98 || (call) == 449 || (call) == 455) /* futex, futex_waitv, futex_wait */
inline_ void take_registers(struct record *record, const struct pt_regs *regs)
{
#pragma unroll
	for (u32 n = 0; n < 31; n++)
		record->regs[n] = regs->x[n];
	record->regs[31] = regs->sp;
	record->regs[32] = regs->pc;
	if (regs->pstate & 0x10) { /* 32-bit code: r13 is its sp */
		record->flags |= FLAG_NARROW;
		record->regs[31] = regs->x[13];
	}
}
#else
struct pt_regs {
	u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss;
};
#define FROM_USER(regs) (((regs)->cs & 3) == 3)
/* Return whether a thread pointer is a C library's: it points to its own address (ELF TLS, variant II). */
#define OF_C_LIBRARY(pointer) (word(pointer) == (pointer))
#define SP 7
#define RED_ZONE 128 /* bytes below sp that a function may use (System V ABI, x86-64) */
/* The system call that it is in, -1: it came in another way. */
#define CALL(regs) ((s32)(regs)->CALL_FIELD)
#define CALL_FIELD orig_rax
#define FIRST_FIELD rdi
#define WAITS_FOR_FUTEX(call) ((call) == 202 || (call) == 449 || (call) == 455) /* futex, futex_waitv, futex_wait */
inline_ void take_registers(struct record *record, const struct pt_regs *regs)
{
	record->regs[0] = regs->rax;
	record->regs[1] = regs->rdx;
	record->regs[2] = regs->rcx;
	record->regs[3] = regs->rbx;
	record->regs[4] = regs->rsi;
	record->regs[5] = regs->rdi;
	record->regs[6] = regs->rbp;
	record->regs[7] = regs->rsp;
	record->regs[8] = regs->r8;
	record->regs[9] = regs->r9;
	record->regs[10] = regs->r10;
	record->regs[11] = regs->r11;
	record->regs[12] = regs->r12;
	record->regs[13] = regs->r13;
	record->regs[14] = regs->r14;
	record->regs[15] = regs->r15;
	record->regs[16] = regs->rip;
	if (regs->cs == 0x23)
		record->flags |= FLAG_NARROW;
}
#endif

/* A code object that occurs in the present sample. Its head is read only once, because a sample is of one instant. */
struct met {
	u64 turn;
	u64 code;
	u64 head;
};

/* The memory in which a record is made before its size is known. Each processor has one. */
struct scratch_space {
	struct walk walk;
	s64 sample_distance; /* from the last overflow to the next sample, in units of 1/OVERFLOW overflows */
	u64 slot_rest;       /* from the next sample to the end of its slot; 0: there was no overflow yet */
	struct record record;
	struct frame frames[MOST_FRAMES];
	struct anchor anchors[MOST_ANCHORS];
	struct text texts[MOST_TEXTS];
	u64 entries[MOST_ENTRIES];
	u64 naming[MOST_NAMING];
	u64 kernel[MOST_KERNEL + 1];
	u64 words[32];
	struct met met[MOST_MET];
	u64 is_met;
	u64 turn; /* number of the present sample, counting those with interpreter frames */
	u64 window[2 * WINDOW / 8]; /* twice the size, because the verifier bounds sizes by powers of two */
	struct layout layout;
	u64 signal[SIGNAL_STACK / 8];
	struct pt_regs user; /* not on the stack: Linux 6.1 gives all nested functions together 512 bytes of it */
	struct ended ended;
	struct wait fresh;
	struct stack_key stack;
	struct sent_pages sent;
	u64 page[PAGE / 8];
	u64 hashes[MOST_PAGES];
	struct known_pages unknown; /* zeros */
};
/* One entry for each processor, set before the load. It is no per-CPU map, because per-CPU values have at most 32 KB. */
struct map SEC("maps") scratch = {ARRAY, 4, sizeof(struct scratch_space), 1, 0};

struct bpf_perf_event_data {
	struct pt_regs regs;
	u64 sample_period;
	u64 addr;
};

inline_ void count(u32 reason)
{
	u32 zero = 0;
	u64 *counts = map_lookup(&counters, &zero);
	if (counts && reason < REASONS)
		counts[reason] += 1;
}

inline_ void time_run(u64 ns)
{
	u32 zero = 0, place = 0;
	u64 *counts = map_lookup(&counters, &zero);
	if (!counts)
		return;
#pragma unroll
	for (int bit = 4; bit >= 0; bit--) {
		u64 is_longer = (0 - (ns >> (1u << bit))) >> 63; /* no jump, because the verifier follows both ways */
		ns >>= is_longer << bit;
		place += is_longer << bit;
	}
	counts[REASONS + (place & 31)] += 1;
}

inline_ u64 word(u64 address)
{
	u64 value = 0;
	if (probe_read_user(&value, 8, (void *)address))
		return 0;
	return value;
}

/* Return the flags for submitting a record: whether its reader is woken depends on how full the ring is. */
inline_ u64 wakes(void)
{
	return ringbuf_query(&ring, 0 /* BPF_RB_AVAIL_DATA */) < fill ? 1 /* BPF_RB_NO_WAKEUP */ : 2 /* BPF_RB_FORCE_WAKEUP */;
}

/* Wake the reader of the ring by an empty record. If the ring has no room for it, the reader is awake. */
inline_ void wake(void)
{
	void *nothing = ringbuf_reserve(&ring, 8, 0);
	if (nothing)
		ringbuf_discard(nothing, 2 /* BPF_RB_FORCE_WAKEUP */);
}

/* Return whether the number of the process's code pages has changed since its last sample. */
static __attribute__((noinline)) u32 other_code(void *task, u32 tgid)
{
	u64 memory = 0, pages = 0;
	if (!task || probe_read_kernel(&memory, 8, task + memory_of_task) || !memory ||
	    probe_read_kernel(&pages, 8, (void *)(memory + code_of_memory)))
		return 0;
	u64 *known = map_lookup(&code_pages, &tgid);
	if (known && *known == pages)
		return 0;
	map_update(&code_pages, &tgid, &pages, 0);
	return 1;
}

/* ---- the interpreter's frames ---- */

#define LAST_OWNER 7 /* of a frame: a greater one is no entry frame's */

inline_ u64 turned(u64 value, u32 bits)
{
	return bits ? value << bits | value >> (64 - bits) : value;
}

/* Copy a text of a code object, such as its name, to the record. A text that cannot be read is left out. */
inline_ void take_text(struct scratch_space *space, u64 address)
{
	struct walk *walk = &space->walk;
	u32 n = walk->texts;
	if (!address || n >= MOST_TEXTS)
		return;
	struct text *row = &space->texts[n & (MOST_TEXTS - 1)];
	u32 size = TEXT_BYTES;
	if (probe_read_user(row->data, TEXT_BYTES, (void *)address)) {
		size = PAGE - ((u32)address & (PAGE - 1));
		if (size > TEXT_BYTES || probe_read_user(row->data, size, (void *)address))
			return;
	}
	row->address = address;
	row->size = size;
	walk->texts = n + 1;
}

static __attribute__((noinline)) void send_code(struct scratch_space *space, u64 code, u64 head)
{
	u32 zero = 0;
	if (space->is_met)
		return;
	u64 *known = map_lookup(&sent_codes, &zero);
	u64 key = (code ^ turned(head, 17) ^ space->walk.tgid) * 0x9E3779B97F4A7C15ull | 1;
	if (!known)
		return;
	known += key >> 40 & (MOST_SENT - 1);
	if (*known == key)
		return;
	*known = key;
	take_text(space, code);
	u32 first = space->layout.code_words - space->layout.code_texts;
	for (u32 n = 0; n < 4; n++) {
		if (n >= space->layout.code_texts)
			break;
		take_text(space, space->words[16 + (first + n & (MOST_HEAD - 1))]);
	}
}

/* Return a hash of the words of a code object that distinguish it from others, or 0 if they cannot be read. */
static __attribute__((noinline)) u64 head_of(struct scratch_space *space, u64 code)
{
	struct met *met = &space->met[code * 0x9E3779B97F4A7C15ull >> 32 & (MOST_MET - 1)];
	u32 words = space->layout.code_words;
	u64 head = 0;
	space->is_met = met->code == code && met->turn == space->turn;
	if (space->is_met)
		return met->head;
	u64 size = 8 * words;
	asm volatile("" : "+r"(size)); /* Linux 6.1 knows a bound of the very register only */
	if (size > 8 * MOST_HEAD || probe_read_user(space->words + 16, size, (void *)(code + space->layout.code_head)))
		return 0;
	for (u32 n = 0; n < MOST_HEAD; n++) {
		if (n >= words)
			break;
		head = (head ^ space->words[16 + n]) * 0x9E3779B97F4A7C15ull;
		head ^= head >> 32;
	}
	met->turn = space->turn;
	met->code = code;
	met->head = head;
	return head;
}

/*
 * Return the index of a frame's first word in the window, or NONE if it cannot be read. A frame that is not in the window is
 * read. Frames of newer CPython versions are adjacent, callers before callees: if the frame was near the previous one, the
 * memory before it on its page is read with it.
 */
inline_ u32 place_of(struct walk *walk, u64 *window, u64 at, u32 size)
{
	u64 into = at - walk->window;
	if (into < WINDOW && into + size <= walk->window_bytes && !(into & 7))
		return into >> 3 & (WINDOW / 8 - 1);
	u64 before = walk->last - at < WINDOW / 2 ? at & (PAGE - 8) : 0;
	if (before > WINDOW - 112)
		before = WINDOW - 112;
	u32 bytes = before + size & (2 * WINDOW - 1);
	if (probe_read_user(window, bytes, (void *)(at - before)))
		return NONE;
	walk->window = at - before;
	walk->window_bytes = bytes;
	return before >> 3 & (WINDOW / 8 - 1);
}

static long next_frame(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 at = walk->frame;
	u32 n = walk->frames;
	if (!at || at == walk->stop || n >= MOST_FRAMES)
		return 1;
	if ((n & 31) == 31 && ktime_get_ns() > walk->deadline) {
		walk->broken = OVER_BUDGET;
		return 1;
	}
	u32 place = layout->frame_bytes <= 112 ? place_of(walk, space->window, at, layout->frame_bytes) : NONE;
	if (place == NONE) {
		walk->broken = FRAME_UNREADABLE;
		return 1;
	}
	u64 *words = space->window + (place & (WINDOW / 8 - 1));
	struct frame *row = &space->frames[n & (MOST_FRAMES - 1)];
	u64 code = words[layout->frame_code >> 3 & 15] & layout->code_mask;
	u64 instr = words[layout->frame_instr >> 3 & 15] >> (8 * (layout->frame_instr & 7));
	u64 flags = 0;
	if (layout->instr_bytes == 4)
		instr &= 0xFFFFFFFF;
	if (layout->frame_flag != NONE)
		flags = words[layout->frame_flag >> 3 & 15] >> (8 * (layout->frame_flag & 7)) & 0xFF;
	if (layout->frame_tlbc != NONE)
		flags |= words[layout->frame_tlbc >> 3 & 15] >> (8 * (layout->frame_tlbc & 7)) << 32;
	u64 previous = words[layout->frame_previous >> 3 & 15];
	u64 head = code ? head_of(space, code) : 0;
	row->address = at;
	row->code = code;
	row->instr = instr;
	row->flags = flags;
	row->head = head;
	if (head)
		send_code(space, code, head);
	walk->frames = n + 1;
	walk->last = at;
	walk->frame = previous == at ? 0 : previous;
	if (!walk->ended && (flags & 0xFF) >= layout->run_ends) {
		walk->ended = 1;
		walk->outer = previous;
	}
	return 0;
}

static long next_anchor(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 at = walk->cframe;
	u32 n = walk->anchors;
	if (!at || at == walk->root || n >= MOST_ANCHORS)
		return 1;
	if ((n & 31) == 31 && ktime_get_ns() > walk->deadline) {
		walk->broken = OVER_BUDGET;
		return 1;
	}
	/* a CFrame ends with its link */
	if (probe_read_user(space->words, 24, (void *)at)) {
		walk->broken = FRAME_UNREADABLE;
		return 1;
	}
	struct anchor *row = &space->anchors[n & (MOST_ANCHORS - 1)];
	row->address = at;
	row->frame = layout->cframe_current == NONE ? 0 : space->words[layout->cframe_current >> 3 & 3];
	walk->anchors = n + 1;
	walk->cframe = space->words[layout->cframe_previous >> 3 & 3];
	return 0;
}

inline_ u32 tid_of(struct layout *layout, u64 state)
{
	u32 tid = 0;
	if (layout->native_id != NONE) {
		probe_read_user(&tid, 4, (void *)(state + layout->native_id));
		return tid;
	}
	u64 self = word(state + layout->thread_id);
	if (self)
		probe_read_user(&tid, 4, (void *)(self + layout->tid_in_pthread));
	return tid;
}

static long next_state(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 state = walk->state;
	if (!state) {
		u64 interpreter = walk->interpreter;
		if (!interpreter)
			return 1;
		state = word(interpreter + layout->threads_head);
		walk->interpreter = word(interpreter + layout->interpreter_next);
		walk->state = state;
		return 0;
	}
	if (tid_of(layout, state) == walk->tid) {
		u32 n = walk->known;
		walk->states[n & (MOST_STATES - 1)] = state;
		walk->known = n + 1;
		if (!walk->several || n + 1 >= MOST_STATES)
			return 1;
	}
	walk->state = word(state + layout->thread_next);
	return 0;
}

/* Store the thread states of a thread in walk->states. */
static __attribute__((noinline)) void find_states(struct scratch_space *space, u64 runtime, struct thread *thread, u32 tid)
{
	struct layout *layout = &space->layout;
	struct walk *walk = &space->walk;
	u64 state = thread ? thread->state : 0, newest = word(runtime + layout->interpreters_head);
	/* up to 3.10 it could not be told which of their frames are inside the others' */
	walk->several = layout->native_id != NONE && newest && word(newest + layout->interpreter_next);
	walk->known = 0;
	if (!walk->several && state && tid_of(layout, state) == walk->tid) {
		walk->states[0] = state;
		walk->known = 1;
		return;
	}
	walk->state = 0;
	walk->interpreter = newest;
	loop(MOST_THREADS, next_state, &space, 0);
	if (!walk->known || walk->several)
		return;
	if (thread)
		thread->state = walk->states[0];
	else {
		struct thread fresh = {.state = walk->states[0]};
		map_update(&threads, &tid, &fresh, 0);
	}
}

/*
 * Read the frames from the nth CFrame of a chain on, after those of the previous thread states. Return whether the evaluator
 * call of that CFrame ends where that of the next CFrame begins, or whether it is too long to be read to its end.
 */
inline_ u32 follow_run(struct scratch_space *space)
{
	struct walk *walk = &space->walk;
	walk->frame = walk->nth < walk->anchors ? space->anchors[walk->nth & (MOST_ANCHORS - 1)].frame : 0;
	walk->frames = walk->own_frames;
	walk->broken = walk->ended = 0;
	walk->last = walk->window_bytes = 0;
	loop(MOST_FRAMES, next_frame, &space, 0);
	u32 n = walk->nth + 1;
	u64 next = n < walk->anchors ? space->anchors[n & (MOST_ANCHORS - 1)].frame : 0;
	return walk->ended ? walk->outer == next : walk->frames >= MOST_FRAMES || walk->broken == OVER_BUDGET;
}

/* Store the address of the next two stack words, in space->signal, if they look like a CFrame. */
static long next_pair(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 at = walk->part + 8 * index;
	u64 current = space->signal[index + (space->layout.cframe_current >> 3 & 3) & (SIGNAL_STACK / 8 - 1)];
	u64 previous = space->signal[index + (space->layout.cframe_previous >> 3 & 3) & (SIGNAL_STACK / 8 - 1)];
	u32 count = walk->entries;
	if (count >= MOST_ENTRIES || ((index & 255) == 255 && ktime_get_ns() > walk->deadline))
		return 1;
	/* one condition: see next_word() */
	u64 is_frame = (current - PAGE < 1ull << 47) & (current - walk->low >= STACK_REACH);
	u64 is_link = (previous == walk->root) | ((previous > at) & (previous < walk->high));
	u64 is_aligned = ((current | previous) & 7) == 0;
	if (is_aligned & is_frame & is_link & (at >= walk->low)) {
		asm volatile("" : "+r"(count)); /* see next_mark() */
		space->entries[count & (MOST_ENTRIES - 1)] = at;
		walk->entries = count + 1;
	}
	return 0;
}

/* Read a frame of an evaluator call that should end at a frame whose caller is walk->outer. */
static long next_leading(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	if (probe_read_user(space->words, layout->frame_bytes & 127, (void *)walk->link))
		return 1;
	u64 flags = space->words[layout->frame_flag >> 3 & 15] >> (8 * (layout->frame_flag & 7)) & 0xFF;
	walk->link = space->words[layout->frame_previous >> 3 & 15];
	walk->leads = flags >= layout->run_ends && flags <= LAST_OWNER && walk->link == walk->outer;
	return flags >= layout->run_ends || !walk->link;
}

static long next_linked(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 at = space->entries[index & (MOST_ENTRIES - 1)];
	if (index >= walk->entries || ktime_get_ns() > walk->deadline)
		return 1;
	walk->link = word(at + layout->cframe_current);
	walk->outer = word(word(at + layout->cframe_previous) + layout->cframe_current);
	walk->leads = 0;
	/* one that was left, of which words are still there, calls nothing */
	if ((u32)word(walk->link + layout->frame_height) == 0xFFFFFFFF)
		loop(MOST_RUN_FRAMES, next_leading, &space, 0);
	if (walk->leads)
		walk->cframe = at;
	return walk->leads != 0;
}

/*
 * Find the second CFrame of a chain whose innermost one has no link yet: an evaluator enters its CFrame into the chain first.
 * It is the next CFrame on the stack whose evaluator call ends where its caller's begins. Returns 0 if there is none.
 */
static __attribute__((noinline)) u32 link_again(struct scratch_space *space)
{
	struct walk *walk = &space->walk;
	u32 words = 0, n = walk->own_anchors;
	walk->low = space->anchors[n & (MOST_ANCHORS - 1)].address + 8;
	walk->high = walk->low + STACK_REACH;
	walk->part = walk->low & ~(PAGE - 1ull); /* pages above those of a program's first calls may never have been touched */
#pragma unroll
	for (u32 page = 0; page < SIGNAL_STACK / PAGE; page++)
		if (words == page * (PAGE / 8) &&
		    !probe_read_user(space->signal + page * (PAGE / 8), PAGE, (void *)(walk->part + page * PAGE)))
			words += PAGE / 8;
	walk->entries = 0;
	walk->cframe = 0;
	if (words > 3)
		loop(words - 3 & (2 * SIGNAL_STACK / 8 - 1), next_pair, &space, 0);
	loop(MOST_ENTRIES, next_linked, &space, 0);
	if (!walk->cframe)
		return 0;
	walk->anchors = n + 1;
	walk->broken = 0;
	loop(MOST_ANCHORS, next_anchor, &space, 0);
	return 1;
}

/* Read the frames of a chain whose CFrames point to its frames. */
inline_ void take_linked(struct scratch_space *space)
{
	struct walk *walk = &space->walk;
	/* follow_run() stands once in a loop: what it is inlined into has no room on the stack for more */
	walk->unread = 0;
	for (u32 tried = 0; tried < 3; tried++) {
		asm volatile("" : "+r"(tried));
		if (follow_run(space))
			break;
		if (tried == 0) {
			/* it has not been said yet which frame runs: the chain begins with the next CFrame's */
			walk->unread = walk->broken;
			walk->rows = walk->frames;
			walk->first = space->anchors[walk->nth & (MOST_ANCHORS - 1)].frame;
			space->anchors[walk->nth & (MOST_ANCHORS - 1)].frame = 0;
			walk->nth += 1;
		} else if (tried == 1) {
			if (walk->frames != walk->own_frames)
				walk->unread = 0;
			/* with what a greenlet begins and ends leads to the root: it names no frame of its own */
			if ((space->layout.seeks == SEEKS_CFRAMES && walk->cframe == walk->root) || !link_again(space))
				break;
			walk->lacks = walk->broken;
		}
	}
	if (walk->unread && walk->frames == walk->own_frames) {
		/* no other one is there: what could be read of that one, and was not written over, stays */
		space->anchors[walk->own_anchors & (MOST_ANCHORS - 1)].frame = walk->first;
		walk->frames = walk->rows;
		walk->broken = walk->unread;
	}
	if (!walk->broken)
		walk->broken = walk->lacks;
}

/* Read the chain of frames of a thread's next thread state, after those of the previous states. */
static long next_chain(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct layout *layout = &space->layout;
	struct walk *walk = &space->walk;
	if (index >= walk->known || walk->broken)
		return 1;
	u64 state = walk->states[index & (MOST_STATES - 1)];
	walk->own_frames = walk->frames;
	walk->nth = walk->own_anchors = walk->anchors;
	walk->frame = walk->stop = walk->cframe = walk->root = walk->last = 0;
	walk->window_bytes = 0;
	walk->ended = 0;
	if (layout->base_frame != NONE)
		walk->stop = word(state + layout->base_frame);
	if (layout->thread_cframe != NONE) {
		walk->root = state + layout->root_cframe;
		walk->cframe = word(state + layout->thread_cframe);
		loop(MOST_ANCHORS, next_anchor, &space, 0);
	}
	walk->lacks = walk->broken;
	if (layout->cframe_current == NONE) {
		walk->frame = word(state + layout->thread_frame);
		loop(MOST_FRAMES, next_frame, &space, 0);
	} else if (walk->anchors > walk->nth) {
		take_linked(space);
	}
	if (walk->frame && walk->frame != walk->stop && !walk->broken)
		walk->broken = TOO_MANY_FRAMES;
	return 0;
}

static __attribute__((noinline)) void take_frames(struct scratch_space *space, struct process *process, struct thread *thread, u32 tid)
{
	struct record *record = &space->record;
	struct layout *layout = &space->layout;
	struct walk *walk = &space->walk;
	u32 place = process->layout;
	struct layout *known = map_lookup(&layouts, &place);
	if (!known)
		return;
	*layout = *known;
	space->turn += 1;
	find_states(space, process->runtime, thread, tid);
	if (!walk->known) {
		count(NO_THREAD_STATE);
		return;
	}
	record->thread_state = walk->states[0];
	record->flags |= FLAG_CHAIN;
	if (walk->known > 1)
		record->flags |= FLAG_SEVERAL;
	walk->frames = walk->anchors = walk->broken = 0;
	loop(MOST_STATES, next_chain, &space, 0);
	if (walk->broken) {
		record->flags |= FLAG_BROKEN;
		count(walk->broken);
	}
	record->frames = walk->frames;
	record->anchors = walk->anchors;
	u64 gil = thread ? thread->gil : 0;
	if (gil) {
		u32 locked = 0;
		probe_read_user(&locked, 4, (void *)(gil + layout->gil_locked));
		if (locked == 1 && word(gil + layout->gil_holder) == record->thread_state)
			record->flags |= FLAG_HOLDS_LOCK;
	}
	u64 collecting = thread ? thread->collecting : 0;
	if (collecting) {
		u32 now = 0;
		probe_read_user(&now, 4, (void *)collecting);
		if (now)
			record->flags |= FLAG_COLLECTING;
	}
}

/* ---- suspended evaluator calls on the stack: greenlets (CPython 3.12 and later) ---- */

/*
 * As in interpreters/cpython/greenlets.py: all entry frames have the same instruction, and are on the stack. A
 * stack word between an entry frame and the next one inside of it points to the innermost frame of its evaluator call. Among
 * the words whose frames lead to this entry frame, it is the one with the most frames.
 */
#define AT_ONCE 2       /* number of stack words that one iteration checks */
#define CALLED 1024     /* maximum distance in bytes from a frame to the frame that it calls */
#define NEAR_ENTRY 1024 /* bytes above an entry frame in which its evaluator may have a pointer to a frame */

/* Return whether the time limit of a run is over, and note that as the reason for missing frames. */
inline_ u32 is_over_budget(struct walk *walk)
{
	if (ktime_get_ns() <= walk->deadline)
		return 0;
	walk->broken = OVER_BUDGET;
	return 1;
}

inline_ u32 on_stack(struct walk *walk, u64 address)
{
	return address >= walk->stack && address < walk->stack_end;
}

/* Return the caller of a frame according to its frame object, or 0 if it has none or the object is not its own. */
inline_ u64 link_of(struct scratch_space *space, u64 object, u64 frame)
{
	struct layout *layout = &space->layout;
	if (!object || word(object + layout->object_frame) != frame)
		return 0;
	return word(object + layout->object_link);
}

/* Read the frame at walk->link into space->words. Return its caller, or 0 if there is none or it is on the stack. */
inline_ u64 next_outside(struct scratch_space *space, u64 *flags)
{
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 *words = space->words;
	u64 at = walk->link;
	if (at & 7 || probe_read_user(words, layout->frame_bytes & 127, (void *)at))
		return 0;
	*flags = words[layout->frame_flag >> 3 & 15] >> (8 * (layout->frame_flag & 7)) & 0xFF;
	if (*flags >= layout->run_ends)
		return 0;
	u64 outer = words[layout->frame_previous >> 3 & 15];
	if (outer != walk->entry) {
		u64 link = link_of(space, words[layout->frame_object >> 3 & 15], at);
		if (on_stack(walk, link))
			outer = link;
	}
	walk->length += 1;
	walk->leads = outer == walk->entry;
	return on_stack(walk, outer) && !walk->leads ? 0 : outer;
}

static long next_link(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	u64 flags = 0;
	space->walk.link = next_outside(space, &flags);
	return !space->walk.link || space->walk.leads;
}

/* Go on to the caller of the frame at walk->link, and add a row for the frame. */
static long next_waiting(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 *words = space->words;
	u64 at = walk->link, flags = 0;
	u64 outer = next_outside(space, &flags);
	u32 n = walk->frames;
	if (!outer || n >= MOST_FRAMES - 1) {
		walk->leads = 0;
		return 1;
	}
	struct frame *row = &space->frames[n & (MOST_FRAMES - 1)];
	u64 code = words[layout->frame_code >> 3 & 15] & layout->code_mask;
	if (layout->frame_tlbc != NONE)
		flags |= words[layout->frame_tlbc >> 3 & 15] >> (8 * (layout->frame_tlbc & 7)) << 32;
	row->address = at;
	row->code = code;
	row->instr = words[layout->frame_instr >> 3 & 15] >> (8 * (layout->frame_instr & 7));
	row->flags = flags;
	row->head = 0; /* see next_head() */
	walk->frames = n + 1;
	walk->link = outer;
	return walk->leads != 0;
}

/* Return the number of frames from one that calls a C function to the entry frame, or 0 if they do not lead there. */
inline_ u32 run_length(struct scratch_space *space, u64 frame)
{
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 object = word(frame + layout->frame_object);
	u32 height = 0;
	if (!link_of(space, object, frame))
		return 0;
	if (layout->frame_height != NONE &&
	    (probe_read_user(&height, 4, (void *)(frame + layout->frame_height)) || height != 0xFFFFFFFF))
		return 0;
	walk->link = frame;
	walk->length = walk->leads = 0;
	loop(MOST_RUN_FRAMES, next_link, &space, 0);
	return walk->leads ? walk->length : 0;
}

/* Store the next stack word that may point to a frame. This is done only if none of the known distances fits. */
static long next_word(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 at = walk->entry + NEAR_ENTRY - 8 * index, value = word(at);
	u32 count = walk->naming;
	if (at <= walk->inner || count >= MOST_NAMING || ((index & 63) == 63 && is_over_budget(walk)))
		return 1;
	/* one condition: the verifier follows each by itself */
	if (!(value & 7) & ((value >> 32) - (walk->heap >> 32) + 1 <= 2) & (value - walk->stack >= walk->stack_end - walk->stack)) {
		space->naming[count & (MOST_NAMING - 1)] = at;
		walk->naming = count + 1;
	}
	return 0;
}

static long next_called(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	if (space->window[index & (WINDOW / 8 - 1)] == walk->calls) {
		space->naming[0] = (walk->calls + 8 + 8 * index - space->layout.frame_previous) | 1;
		walk->naming = 1;
	}
	return 0;
}

/*
 * Try the next word that may point to the innermost frame. After all words, search the memory after the best frame for its
 * callee, because the pointer to that may be in a register and in no stack word.
 */
static long next_naming(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	if (is_over_budget(walk))
		return 1;
	if (walk->tried >= walk->naming) {
		u64 frame = walk->best;
		walk->naming = walk->tried = 0;
		if (!frame && walk->searched++)
			return 1; /* it may have been left, and nothing is written over it yet */
		if (!frame) {
			loop(MOST_SEARCHED / 8, next_word, &space, 0);
			return 0;
		}
		if (frame == walk->calls || probe_read_user(space->window, CALLED, (void *)(frame + 8)))
			return 1;
		walk->calls = frame;
		loop(CALLED / 8, next_called, &space, 0);
		return 0;
	}
	u64 place = space->naming[walk->tried & (MOST_NAMING - 1)];
	u64 frame = place & 1 ? place & ~1ull : word(place);
	u32 length = run_length(space, frame);
	walk->tried += 1;
	if (length > walk->longest) {
		walk->longest = length;
		walk->best = frame;
		if (!(place & 1))
			walk->slot = place;
	}
	return 0;
}

static long next_entry(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	if (index >= walk->entries || walk->broken)
		return 1;
	u64 entry = space->entries[index & (MOST_ENTRIES - 1)];
	u32 first = walk->frames;
	if (probe_read_user(space->words, layout->frame_bytes & 127, (void *)entry))
		return 0;
	u64 flags = space->words[layout->frame_flag >> 3 & 15] >> (8 * (layout->frame_flag & 7)) & 0xFF;
	if ((space->words[layout->frame_code >> 3 & 15] & layout->code_mask) != walk->code || flags < layout->run_ends ||
	    flags > LAST_OWNER)
		return 0;
	walk->entry = entry;
	walk->tried = walk->longest = walk->searched = 0;
	walk->best = walk->calls = walk->slot = 0;
	u32 tgid = walk->tgid;
	struct process *process = map_lookup(&processes, &tgid);
	if (!process)
		return 1;
#pragma unroll
	for (u32 n = 0; n < MOST_SLOTS; n++)
		space->naming[n] = entry - process->slots[n];
	walk->naming = MOST_SLOTS;
	loop(MOST_SLOTS + MOST_NAMING + MOST_RUN_FRAMES, next_naming, &space, 0);
	if (!walk->best || walk->broken)
		return 0;
	if (walk->searched && walk->slot)
		process->slots[walk->kept++ & (MOST_SLOTS - 1)] = entry - walk->slot;
	walk->link = walk->best;
	walk->length = walk->leads = 0;
	loop(MOST_RUN_FRAMES, next_waiting, &space, 0);
	u32 n = walk->frames;
	if (!walk->leads || n >= MOST_FRAMES) {
		walk->frames = first;
		walk->broken = FRAME_UNREADABLE;
		return 1;
	}
	struct frame *row = &space->frames[n & (MOST_FRAMES - 1)];
	row->address = entry;
	row->code = walk->code;
	row->instr = walk->mark;
	row->flags = flags;
	row->head = 0;
	walk->frames = n + 1;
	walk->inner = entry;
	return 0;
}

static long next_mark(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 mark = walk->mark;
#pragma unroll
	for (u32 n = 0; n < AT_ONCE; n++) {
		u32 at = index * AT_ONCE + n & (WINDOW / 8 - 1), count = walk->entries;
		u64 entry = walk->part + 8 * at - space->layout.frame_instr;
		if (space->window[at] == mark && entry > walk->inner && count < MOST_ENTRIES) {
			asm volatile("" : "+r"(count)); /* else the mask would be left out, and Linux does not see why */
			space->entries[count & (MOST_ENTRIES - 1)] = entry;
			walk->entries = count + 1;
		}
	}
	return 0;
}

/* Find the entry frames in the next part of the stack, innermost first. */
static long next_marks(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 part = (walk->inner & ~(WINDOW - 1ull)) + index * WINDOW;
	if (part >= walk->stack_end || is_over_budget(walk))
		return 1;
	if (probe_read_user(space->window, WINDOW, (void *)part))
		return 0;
	walk->part = part;
	loop(WINDOW / 8 / AT_ONCE, next_mark, &space, 0);
	return 0;
}

/* Learn instruction and code of entry frames from the outermost frame of a thread's own chain. Returns 0 if it is none. */
inline_ u32 learn_mark(struct scratch_space *space, struct process *process, u32 own)
{
	struct walk *walk = &space->walk;
	struct frame *last = &space->frames[own - 1 & (MOST_FRAMES - 1)];
	if ((last->flags & 0xFF) < space->layout.run_ends || !on_stack(walk, last->address))
		return 0;
	walk->inner = last->address;
	process->mark = last->instr;
	process->code = last->code;
	process->heap = space->frames[own > 1 && on_stack(walk, space->frames[0].address)].address;
	return 1;
}

/* Add rows of suspended evaluator calls. `own`: length of the thread's own chain, 0 where a greenlet begins or ends. */
static __attribute__((noinline)) void take_waiting(struct scratch_space *space, struct process *process, u32 own)
{
	struct walk *walk = &space->walk;
	walk->inner = walk->stack - 8;
	if (own && !learn_mark(space, process, own))
		return;
	walk->mark = process->mark;
	walk->code = process->code;
	walk->heap = process->heap;
	if (!walk->mark)
		return;
	loop(MOST_SEARCHED / WINDOW + 1, next_marks, &space, 0);
	loop(MOST_ENTRIES, next_entry, &space, 0);
}

/* ---- suspended evaluator calls on the stack: greenlets (CPython 3.11) ---- */

/*
 * A CFrame points to its caller's, the outermost CFrame to the root. So from the stack's end inwards, each word that points to
 * the root or to a CFrame that was found may be the link of a CFrame. Their frames are copied here. The reader of the
 * record decides which of them are suspended (interpreters/cpython/greenlet_cframes.py).
 */
#define FOUND(space, address) ((space)->signal[(address) >> 3 & (SIGNAL_STACK / 8 - 1)])

static long next_linking(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 salt = walk->deadline; /* what was found for other samples is not taken for this one's */
#pragma unroll
	for (u32 n = 0; n < AT_ONCE; n++) {
		u32 at = WINDOW / 8 - 1 - (index * AT_ONCE + n) & (WINDOW / 8 - 1), count = walk->entries;
		u64 value = space->window[at], cframe = walk->part + 8 * at - space->layout.cframe_previous;
		/* one condition: see next_word() */
		if (((value == walk->root) | (FOUND(space, value) == (value ^ salt))) & (cframe > walk->inner) & (count < MOST_ENTRIES)) {
			asm volatile("" : "+r"(count)); /* see next_mark() */
			space->entries[count & (MOST_ENTRIES - 1)] = cframe;
			FOUND(space, cframe) = cframe ^ salt;
			walk->entries = count + 1;
		}
	}
	return 0;
}

/* Find the CFrames in the next part of the stack, outermost first. */
static long next_linkings(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 part = (walk->stack_end - 1 & ~(WINDOW - 1ull)) - index * WINDOW;
	if (part + WINDOW <= walk->inner || is_over_budget(walk))
		return 1;
	if (probe_read_user(space->window, WINDOW, (void *)part))
		return 0;
	walk->part = part;
	loop(WINDOW / 8 / AT_ONCE, next_linking, &space, 0);
	return 0;
}

/* Add a row for the frame at walk->link, and go on to its caller. A frame that already has a row ends the search. */
static long next_entered(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 *words = space->words;
	u64 at = walk->link, met = ~(at ^ walk->deadline);
	u32 n = walk->frames;
	walk->leads = FOUND(space, at) == met;
	if (walk->leads || at & 7 || n >= MOST_FRAMES || probe_read_user(words, layout->frame_bytes & 127, (void *)at))
		return 1;
	u64 is_entry = words[layout->frame_flag >> 3 & 15] >> (8 * (layout->frame_flag & 7)) & 0xFF;
	u64 outer = words[layout->frame_previous >> 3 & 15];
	u64 calls = (u32)words[layout->frame_height >> 3 & 15] == 0xFFFFFFFF;
	/* the innermost one calls a C function; one that was left does not */
	if ((!index && !calls) || outer & 7 || outer >> 56)
		return 1;
	asm volatile("" : "+r"(n)); /* see next_mark() */
	struct frame *row = &space->frames[n & (MOST_FRAMES - 1)];
	row->address = at;
	row->code = words[layout->frame_code >> 3 & 15];
	row->instr = words[layout->frame_instr >> 3 & 15];
	row->flags = WAITING_FLAGS(is_entry, outer, calls);
	row->head = 0; /* see next_head() */
	FOUND(space, at) = met;
	walk->frames = n + 1;
	walk->link = outer;
	walk->leads = is_entry != 0;
	return is_entry || !outer;
}

static long next_named(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	if (index >= walk->entries || is_over_budget(walk))
		return 1;
	u32 first = walk->frames;
	walk->link = word(space->entries[index & (MOST_ENTRIES - 1)] + space->layout.cframe_current);
	walk->leads = 0;
	if (walk->link)
		loop(MOST_RUN_FRAMES, next_entered, &space, 0);
	if (!walk->leads)
		walk->frames = first;
	return 0;
}

static __attribute__((noinline)) void take_named(struct scratch_space *space)
{
	struct walk *walk = &space->walk;
	u32 anchors = space->record.anchors;
	if (!anchors || space->record.flags & FLAG_SEVERAL)
		return;
	walk->inner = space->anchors[anchors - 1 & (MOST_ANCHORS - 1)].address;
	if (!on_stack(walk, walk->inner))
		return;
	loop(MOST_SEARCHED / WINDOW + 1, next_linkings, &space, 0);
	loop(MOST_ENTRIES, next_named, &space, 0);
}

/* ---- greenlets of all versions ---- */

/*
 * Read the head of the code object of a row that has none yet: of a suspended call or an awaiting task. Entry frames run no
 * code. This is not done where rows are made, because there the call depth uses up the stack that Linux 6.1 gives.
 */
static long next_head(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u32 n = walk->own_frames + index;
	if (n >= walk->frames || is_over_budget(walk))
		return 1;
	struct frame *row = &space->frames[n & (MOST_FRAMES - 1)];
	u64 code = row->code;
	if (!code || (space->layout.seeks == SEEKS_ENTRIES && (row->flags & 0xFF) >= space->layout.run_ends))
		return 0;
	u64 head = head_of(space, code);
	row->head = head;
	if (head)
		send_code(space, code, head);
	return 0;
}

/* Add rows of suspended evaluator calls on the stack, after all other rows. */
inline_ void seek(struct scratch_space *space, struct process *process, u64 sp, u64 end)
{
	struct walk *walk = &space->walk;
	struct record *record = &space->record;
	u32 own = record->frames - record->awaiting, first = record->frames;
	if (first >= MOST_FRAMES || walk->broken)
		return;
	walk->stack = sp;
	walk->stack_end = end - sp > MOST_SEARCHED ? sp + MOST_SEARCHED : end;
	walk->entries = 0;
	walk->frames = first;
	if (space->layout.seeks == SEEKS_ENTRIES)
		take_waiting(space, process, own);
	else
		take_named(space);
	walk->own_frames = first;
	loop(MOST_FRAMES, next_head, &space, 0);
	record->frames = walk->frames;
	record->waiting = walk->frames - first;
	if (walk->broken)
		count(walk->broken);
}

/* ---- tasks that await the running one ---- */

#include "awaiters.h"

/* ---- the stack ---- */

struct vm_area_struct { /* its first two words, in all kernels */
	u64 vm_start;
	u64 vm_end;
};

struct bound {
	u64 end;
};

static long mapping_ends(void *task, struct vm_area_struct *vma, void *context)
{
	((struct bound *)context)->end = vma->vm_end;
	return 0;
}

/*
 * Copy `size` bytes into a record. If the compiler knew that size is not 0, it would compare size - 1, from which Linux 6.1
 * does not learn a bound of size.
 */
inline_ void put(u64 *record, u32 at, void *from, u64 size, u64 most)
{
	if (!size)
		return;
	asm volatile("" : "+r"(size));
	if (size <= most)
		dynptr_write(record, at, from, size, 0);
}

struct sending {
	u64 record[2]; /* struct bpf_dynptr */
	struct scratch_space *space;
	struct known_pages *known;
};

static long next_page(u32 index, void *context)
{
	struct sending *sending = context;
	struct walk *walk = &sending->space->walk;
	u64 from = walk->from;
	u64 size = walk->left;
	/* never beyond a page of the target: what can be read of it is read */
	u64 room = PAGE - (from & (PAGE - 1));
	if (!size)
		return 1;
	if ((index & 15) == 15 && ktime_get_ns() > walk->deadline) {
		count(OVER_BUDGET);
		return 1;
	}
	if (size > room)
		size = room;
	/* the dynptr wants a constant length: a record has a page of slack */
	void *to = dynptr_data(sending->record, walk->at, PAGE);
	asm volatile("" : "+r"(size)); /* see put() */
	if (!to || size > PAGE)
		return 1;
	/* a page that was never touched, or swapped out: those behind it may be there */
	if (probe_read_user(to, size, (void *)from)) {
		if (index >= 64 || (index && walk->guessed))
			return 1;
		walk->holes |= 1ull << index;
	}
	walk->from = from + size;
	walk->at += size;
	walk->left -= size;
	return 0;
}

/* ---- pages of a long stack ---- */

struct hashing {
	struct scratch_space *space;
	struct known_pages *known;
};

inline_ u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
	return hash ^ hash >> 29;
}

#define HASHED 32 /* words in one turn */

static long next_words(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 *words = space->page + (index & (PAGE / 8 / HASHED - 1)) * HASHED;
	u64 first = walk->parts[0], second = walk->parts[1], third = walk->parts[2], fourth = walk->parts[3];
#pragma unroll
	for (u32 n = 0; n < HASHED; n += 4) {
		first = mix(first, words[n]);
		second = mix(second, words[n + 1]);
		third = mix(third, words[n + 2]);
		fourth = mix(fourth, words[n + 3]);
	}
	walk->parts[0] = first;
	walk->parts[1] = second;
	walk->parts[2] = third;
	walk->parts[3] = fourth;
	return 0;
}

/* Check whether a page has changed since the last record of its stack, by a 64-bit hash with a random salt. */
static long next_hash(u32 index, void *context)
{
	struct hashing *hashing = context;
	struct scratch_space *space = hashing->space;
	struct walk *walk = &space->walk;
	u64 from = walk->from, salt = walk->salt, end = walk->end;
	u32 n = (end - 1 - from) / PAGE & (MOST_PAGES - 1);
	if (from + PAGE > end)
		return 1;
	if (probe_read_user(space->page, PAGE, (void *)from) || ((index & 3) == 0 && ktime_get_ns() > walk->deadline)) {
		walk->unread_page = 1;
		return 1;
	}
	for (u32 part = 0; part < 4; part++)
		walk->parts[part] = salt + part;
	loop(PAGE / 8 / HASHED, next_words, &space, 0);
	u64 hash = mix(mix(mix(walk->parts[0], walk->parts[1]), walk->parts[2]), walk->parts[3]);
	space->hashes[n] = hash;
	/* without branches: the verifier follows each */
	u64 differs = hashing->known->hashes[n] ^ hash;
	u64 is_changed = (differs | (0 - differs)) >> 63;
	u64 is_later = walk->run_ended | (1 - is_changed);
	space->sent.bits[n / 64] |= is_changed << (n & 63);
	walk->later += is_changed * is_later * PAGE;
	walk->run_end += (1 - is_later) * PAGE;
	walk->run_ended = is_later;
	walk->from = from + PAGE;
	return 0;
}

inline_ struct known_pages *known_pages_of(struct scratch_space *space)
{
	space->stack = (struct stack_key){space->walk.end, space->record.pid};
	return map_lookup(&known_stacks, &space->stack);
}

/* Find which pages of the stack above sp have changed. Clears walk->sends if a page cannot be read: then all are copied. */
static __attribute__((noinline)) void find_changes(struct scratch_space *space, u64 sp)
{
	struct walk *walk = &space->walk;
	struct hashing hashing = {.space = space, .known = known_pages_of(space)};
	u64 end = walk->end;
	if (!hashing.known) {
		map_update(&known_stacks, &space->stack, &space->unknown, 0);
		hashing.known = known_pages_of(space);
	}
	if (!hashing.known)
		return;
	space->sent = (struct sent_pages){.end = end};
	walk->salt = (hash_salt ^ end ^ hashing.known->failed << 48) * 0x9E3779B97F4A7C15ull ^ space->record.pid;
	walk->from = walk->run_end = (sp & ~(PAGE - 1ull)) + PAGE;
	walk->run_ended = walk->later = walk->unread_page = 0;
	loop(MOST_PAGES, next_hash, &hashing, 0);
	if (walk->run_ended)
		walk->later += end & (PAGE - 1);
	else
		walk->run_end = end;
	walk->sends = !walk->unread_page;
}

/* Store the hash of a page that is sent. Send it separately if it is above the first copy. */
static long next_sent(u32 index, void *context)
{
	struct sending *sending = context;
	struct scratch_space *space = sending->space;
	struct walk *walk = &space->walk;
	u64 from = walk->from, end = walk->end;
	u32 n = (end - 1 - from) / PAGE & (MOST_PAGES - 1);
	u64 size = end - from;
	if (from >= end)
		return 1;
	walk->from = from + PAGE;
	if (size >= PAGE) {
		if (!(space->sent.bits[n / 64] >> (n & 63) & 1))
			return 0;
		sending->known->hashes[n] = space->hashes[n];
		size = PAGE;
	}
	if (from < walk->run_end)
		return 0;
	void *to = dynptr_data(sending->record, walk->at, PAGE);
	asm volatile("" : "+r"(size)); /* see put() */
	if (!to || size > PAGE || probe_read_user(to, size, (void *)from)) {
		walk->unread_page = 1;
		return 1;
	}
	walk->at += size;
	return 0;
}

/* Send the pages above the first copy. If a page cannot be copied, no page counts as known, and the next record has all. */
static __attribute__((noinline)) void send_pages(struct sending *sending, u32 at)
{
	struct scratch_space *space = sending->space;
	struct walk *walk = &space->walk;
	struct known_pages *known = known_pages_of(space);
	walk->from = (space->record.stack_base & ~(PAGE - 1ull)) + PAGE;
	if (!known)
		return;
	walk->unread_page = space->record.holes || space->record.stack_size != (u32)walk->size;
	sending->known = known;
	if (!walk->unread_page)
		loop(MOST_PAGES, next_sent, sending, 0);
	sending->known = 0;
	known->failed += walk->unread_page;
	known->number = walk->unread_page ? 0 : known->number + 1;
	space->sent.number = known->number;
	dynptr_write(sending->record, at, &space->sent, sizeof(space->sent), 0);
}

static long next_reference(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 value = space->signal[index & (SIGNAL_STACK / 8 - 1)];
	if (value >= walk->low && value < walk->high && value < walk->lowest)
		walk->lowest = value;
	return (index & 255) == 255 && ktime_get_ns() > walk->deadline;
}

/*
 * Return the lowest address in the stack [low, end) to which the stack of a signal handler refers: its signal frame has the
 * interrupted sp. Returns 0 if no word refers to that stack, so that it is not the interrupted one.
 */
static __attribute__((noinline)) u64 interrupted(struct scratch_space *space, u64 sp, u64 low, u64 end)
{
	struct walk *walk = &space->walk;
	u32 words = 0;
#pragma unroll
	for (u32 page = 0; page < SIGNAL_STACK / PAGE; page++) {
		u64 from = sp + page * PAGE;
		if (words == page * (PAGE / 8) && !probe_read_user(space->signal + page * (PAGE / 8), PAGE, (void *)from))
			words += PAGE / 8;
	}
	walk->low = low;
	walk->high = end;
	walk->lowest = end;
	loop(words & (2 * SIGNAL_STACK / 8 - 1), next_reference, &space, 0);
	return walk->lowest < end ? walk->lowest & ~7ull : 0;
}

/*
 * Return the end of a thread's stack, if that is between sp and the end of the mapping. For the main thread it is a little
 * above the start of its stack: arguments and environment follow up to the end of the mapping. For others it is the thread
 * pointer: C libraries put thread data at the top of the stack, and several stacks may share a mapping (glibc 2.42 has no
 * guards). A Go program without a C library has both in its heap. The lowest bit says whether the end is one of these.
 */
static __attribute__((noinline)) u64 beginning(void *task, u64 sp, u64 end)
{
	u64 memory = 0, first = 0, pointer = 0;
	if (task && !probe_read_kernel(&pointer, 8, task + pointer_of_task) && pointer > sp && pointer < end &&
	    OF_C_LIBRARY(pointer))
		return (pointer & ~7ull) | 1;
	if (!task || probe_read_kernel(&memory, 8, task + memory_of_task) || !memory ||
	    probe_read_kernel(&first, 8, (void *)(memory + stack_of_memory)))
		return end;
	return first >= sp && first < end && end - first > STACK_SLACK ? ((first + STACK_SLACK) & ~7ull) | 1 : end;
}

#define LABEL_HEADS 8 /* in space->words: address of the first name, distance to its value, to the next name, their number */

/* Copy a label. space->words say where the addresses and lengths of its name and value are. */
static long next_label(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	u64 *key = space->words, *content = space->words + 2, *heads = space->words + LABEL_HEADS;
	u64 name = heads[0] + index * heads[2];
	u32 n = walk->texts;
	if (index >= heads[3]) {
		space->record.flags &= ~FLAG_UNLABELED;
		return 1;
	}
	if (probe_read_user(key, 16, (void *)name) || probe_read_user(content, 16, (void *)(name + heads[1])))
		return 1;
	struct text *row = &space->texts[n & (MOST_TEXTS - 1)];
	u32 key_size = key[1] < LABEL_NAME ? key[1] : LABEL_NAME;
	u32 size = content[1] < TEXT_BYTES - LABEL_NAME ? content[1] : TEXT_BYTES - LABEL_NAME;
	if (probe_read_user(row->data, key_size & (2 * LABEL_NAME - 1), (void *)key[0]) ||
	    probe_read_user(row->data + LABEL_NAME, size & 255, (void *)content[0]))
		return 1;
	row->address = key[1];
	row->size = content[1];
	walk->texts = n + 1;
	return 0;
}

/*
 * The labels that a goroutine has now (runtime/pprof.SetGoroutineLabels), which are never changed but replaced. A map up to
 * Go 1.23: its number of entries, then behind the exponent of the number of buckets and a seed the address of the first one,
 * with eight bytes of hashes, eight names and eight values. A slice from Go 1.24 on: address, length and capacity. A map's
 * first word is a small number, and an array's is an address.
 */
static __attribute__((noinline)) void take_labels(struct scratch_space *space, u64 labels)
{
	u64 *slice = space->words, *map = space->words + 3, *heads = space->words + LABEL_HEADS;
	if (probe_read_user(slice, 24, (void *)labels) || !slice[0])
		return;
	space->record.flags |= FLAG_LABELS | FLAG_UNLABELED;
	if (probe_read_user(map, 24, (void *)slice[0]))
		return;
	heads[0] = slice[0];
	heads[1] = 16;
	heads[2] = 32;
	heads[3] = slice[1] > slice[2] ? MOST_LABELS + 1 : slice[1];
	if (map[0] <= MOST_LABELS && !(map[1] >> 8 & 0xff)) {
		heads[0] = map[2] + 8;
		heads[1] = 16 * 8;
		heads[2] = 16;
		heads[3] = map[0];
	}
	loop(MOST_LABELS + 1, next_label, &space, 0);
}

/* Return whether sp is within stack.lo and stack.hi of a struct g. */
inline_ u32 is_on_stack_of(u64 goroutine, u64 sp, u64 *low, u64 *high)
{
	*low = word(goroutine);
	*high = word(goroutine + 8);
	return sp >= *low && sp < *high;
}

/*
 * Find the goroutine that a thread of a Go program runs, and the part of its stack to copy if the thread is on another one:
 * that of its scheduler (runtime.systemstack, runtime.morestack, calls of C), or of a signal handler. The part begins at
 * the saved sp, or at the lowest address to which a register or the handler's stack refers: for the vDSO, Go saves sp there.
 */
static __attribute__((noinline)) void find_goroutine(struct scratch_space *space, struct process *process, void *task, u64 sp)
{
	struct record *record = &space->record;
	struct walk *walk = &space->walk;
	u64 pointer = 0, low = 0, high = 0, found;
	walk->own_end = walk->goroutine_from = walk->scheduler_from = 0;
	walk->goroutine_low = walk->goroutine_high = 0;
	record->goroutine = 0;
	u32 latest = 0; /* no process has that number: what is known of the latest Go program, until more is of this one */
	walk->labels_at = walk->labels = 0;
	if (!process || !process->go_m)
		process = map_lookup(&processes, &latest);
	else if (!process->runtime)
		walk->labels_at = process->go_labels;
	if (!process || !process->go_m || !task || probe_read_kernel(&pointer, 8, task + pointer_of_task))
		return;
	u64 m = word(word(pointer + process->go_tls) + process->go_m);
	u64 scheduler = m ? word(m + process->go_g0) : 0;
	if (!scheduler || word(scheduler + process->go_m) != m)
		return; /* another program */
	u64 goroutine = word(m + process->go_curg);
	if (goroutine && !probe_read_user(record->goroutine_head, sizeof(record->goroutine_head), (void *)goroutine) &&
	    record->goroutine_head[process->go_m >> 3 & 15] == m) {
		record->goroutine = goroutine;
		if (walk->labels_at)
			walk->labels = goroutine + walk->labels_at;
		low = record->goroutine_head[0];
		high = record->goroutine_head[1];
		if (sp >= low && sp < high) {
			walk->own_end = high;
			return;
		}
		u64 from = record->goroutine_head[process->go_sched >> 3 & 15];
		if (from < low || from > high)
			from = high;
		u64 above = from - low; /* one comparison for each register, because the verifier follows both ways */
#pragma unroll
		for (u32 n = 0; n < REGISTERS; n++) {
			if (record->regs[n] - low < above)
				above = record->regs[n] - low;
			asm volatile("" : "+r"(above)); /* one after the other: together they take 128 to 224 bytes of the stack */
		}
		walk->goroutine_from = low + above;
		walk->goroutine_low = low;
		walk->goroutine_high = high;
	}
	if (is_on_stack_of(scheduler, sp, &low, &high)) {
		if (!OF_C_LIBRARY(pointer)) /* else it has the stack of a thread of C, and Go knows only a part of that */
			walk->own_end = high;
		return;
	}
	walk->scheduler_high = high;
	if (!is_on_stack_of(word(m + process->go_gsignal), sp, &found, &walk->own_end)) {
		walk->own_end = 0;
		return;
	}
	walk->scheduler_from = interrupted(space, sp, low, high);
	if (!walk->goroutine_high)
		return;
	found = interrupted(space, sp, walk->goroutine_low, walk->goroutine_high);
	if (found && found < walk->goroutine_from)
		walk->goroutine_from = found;
}

static __attribute__((noinline)) void remember_end(struct thread *thread, u32 tid, u64 end)
{
	if (thread) {
		thread->stack_end = end;
		return;
	}
	struct thread fresh = {.stack_end = end};
	map_update(&threads, &tid, &fresh, 0);
}

/* Copy the present kernel frames without the `innermost` ones. A thread that was interrupted in user mode has none. */
inline_ void take_kernel(struct scratch_space *space, void *context, u64 innermost)
{
	space->record.kernel = 0;
	if (!kernel_stacks)
		return;
	long size = get_stack(context, space->kernel, MOST_KERNEL * 8, innermost);
	if (size > 0)
		space->record.kernel = (u32)size / 8;
}

/* Find how many bytes below sp are copied: none of a page that is not in memory. */
static __attribute__((noinline)) void find_zone(struct scratch_space *space)
{
	struct record *record = &space->record;
	u64 sp = record->regs[SP] & ~7ull, above = sp & (PAGE - 1);
	u32 zone = record->flags & FLAG_NARROW ? 0 : RED_ZONE;
	if (above < zone && probe_read_user(space->words, 8, (void *)(sp - zone)))
		zone = above;
	space->walk.zone = zone;
}

/* Find the end of the stack that the thread is on, and the part of the interrupted stack to copy. */
static __attribute__((noinline)) void find_end(struct scratch_space *space, struct process *process, struct thread *thread,
					       void *task, u32 tid)
{
	struct walk *walk = &space->walk;
	u64 sp = space->record.regs[SP] & ~7ull;
	find_goroutine(space, process, task, sp);
	walk->guessed = 0;
	walk->below = walk->below_size = 0;
	walk->end = walk->own_end;
	walk->sure = walk->own_end != 0;
	if (walk->end) {
		walk->below = walk->scheduler_from;
		walk->below_size = walk->below ? walk->scheduler_high - walk->below : 0;
		if (walk->below_size > MOST_STACK)
			walk->below_size = MOST_STACK;
		return;
	}
	u64 known = thread ? thread->stack_end : 0, end = known & ~7ull;
	struct bound bound = {};
	u32 is_inside = end > sp && end - sp <= STACK_REACH;
	walk->end = end;
	walk->sure = known & 1;
	if (is_inside && ++walk->looks & 63)
		return;
	find_vma(task, sp, mapping_ends, &bound, 0);
	if (is_inside) {
		/* the mapping may have been parted for a moment, by mprotect, when its end was looked for */
		u64 now = bound.end ? beginning(task, sp, bound.end) : 0;
		if (now > known) {
			walk->end = now & ~7ull;
			walk->sure = now & 1;
			remember_end(thread, tid, now);
		}
		return;
	}
	walk->sure = 0;
	if (end)
		walk->below = interrupted(space, sp, end - STACK_REACH, end);
	if (walk->below) {
		walk->below_size = end - walk->below;
		if (walk->below_size > MOST_STACK)
			walk->below_size = MOST_STACK;
		end = bound.end;
		if (!end || end > sp + SIGNAL_STACK)
			end = sp + SIGNAL_STACK;
	} else if (!bound.end) {
		/* the process changes its mappings at this moment, and they are locked; the next sample looks again */
		end = sp + UNKNOWN_STACK;
		walk->guessed = 1;
		count(STACK_END_GUESSED);
	} else {
		end = beginning(task, sp, bound.end);
		remember_end(thread, tid, end);
		walk->sure = end & 1;
		end &= ~7ull;
	}
	walk->end = end;
}

/* Find what is to be copied to a record that already has registers and kernel frames. */
static __attribute__((noinline)) void prepare_record(struct scratch_space *space, struct process *process, void *task,
						     u32 leaves_out)
{
	struct record *record = &space->record;
	struct walk *walk = &space->walk;
	u32 tgid = record->pid, tid = record->tid;
	record->cpu = get_smp_processor_id();
	record->frames = 0;
	record->anchors = 0;
	record->thread_state = 0;
	record->waiting = 0;
	record->awaiting = 0;
	walk->texts = 0;
	walk->deadline = record->time_ns + MOST_RUN_NS;
	find_zone(space);
	struct thread *thread = map_lookup(&threads, &tid);
	if (process && process->runtime) {
		walk->tid = tid;
		walk->tgid = tgid;
		if (process->namespace_ino) {
			struct namespaced own = {};
			if (!get_ns_current_pid_tgid(process->namespace_dev, process->namespace_ino, &own, sizeof(own)))
				walk->tid = own.pid;
		}
		take_frames(space, process, thread, tid);
		if (follows_tasks && record->flags & FLAG_CHAIN && space->layout.running_task != NONE)
			take_awaiting(space);
	}

	find_end(space, process, thread, task, tid);
	u64 sp = record->regs[SP] & ~7ull, end = walk->end;
	if (seeks_waiting && process && record->flags & FLAG_CHAIN && space->layout.seeks && end > sp)
		seek(space, process, sp, end);
	u64 size = end > sp ? end - sp : 0;
	u32 zero = 0;
	struct limits *limit = map_lookup(&limits, &zero);
	u64 most = limit && limit->stack && limit->stack < MOST_STACK ? limit->stack : MOST_STACK;
	u64 most_whole = walk->sure ? (MOST_PAGES - 1) * PAGE : most;
	u64 goroutine_base = walk->goroutine_from & ~7ull;
	walk->sends = walk->later = 0;
	if (leaves_out && size > WHOLE_STACK && !(walk->below | goroutine_base | walk->guessed | (size > most_whole)))
		find_changes(space, sp - walk->zone);
	if (walk->sends) {
		size = walk->run_end - sp;
		record->flags |= FLAG_PAGES;
	} else if (size > most) {
		if (!walk->below) {
			walk->below_size = size - most < STACK_BEGINNING ? size - most : STACK_BEGINNING;
			walk->below = end - walk->below_size;
		}
		size = most;
		record->flags |= FLAG_CUT;
		if (most == MOST_STACK)
			count(STACK_CUT);
	}
	u64 goroutine_size = goroutine_base ? walk->goroutine_high - goroutine_base : 0;
	walk->goroutine_size = goroutine_size > MOST_STACK ? MOST_STACK : goroutine_size;
	walk->size = size + walk->zone;
	record->goroutine_base = goroutine_base;
	record->stack_base = sp - walk->zone;
	record->below_base = walk->below;

	u64 labels = walk->labels ? word(walk->labels) : 0;
	if (labels)
		take_labels(space, labels);
	record->texts = walk->texts;
}

/* Copy a part of a stack, from walk->from on, to the record. */
inline_ void copy_part(struct sending *sending, u64 from, u64 size)
{
	struct walk *walk = &sending->space->walk;
	walk->from = from;
	walk->left = size;
	walk->holes = 0;
	loop(MOST_PAGES + 2, next_page, sending, 0);
}

/* Submit the prepared record to the ring. Returns 0 on success. */
static __attribute__((noinline)) int send_record(struct scratch_space *space, void *task)
{
	struct record *record = &space->record;
	struct walk *walk = &space->walk;
	struct sending sending = {.space = space};
	u32 rows = (record->frames & (2 * MOST_FRAMES - 1)) * sizeof(struct frame);
	u32 anchors = (record->anchors & (2 * MOST_ANCHORS - 1)) * sizeof(struct anchor);
	u32 texts = (record->texts & (2 * MOST_TEXTS - 1)) * sizeof(struct text);
	u32 kernel = (record->kernel & MOST_KERNEL) * 8;
	u32 pages = walk->sends * sizeof(struct sent_pages);
	u32 head = sizeof(struct record) + rows + anchors + texts + kernel;
	u32 rest = walk->below_size + walk->goroutine_size + PAGE;
	if (walk->sends && ringbuf_query(&ring, 0) + walk->size + walk->later > 3ull * fill / 2) {
		/* a part of the stack says what runs, a lost record does not: the last quarter of the ring is for such parts */
		walk->sends = pages = 0;
		walk->later = 0;
		record->flags += FLAG_CUT - FLAG_PAGES;
		walk->size = walk->size < WHOLE_STACK / 4 ? walk->size : WHOLE_STACK / 4;
	}
	if (ringbuf_reserve_dynptr(&ring, head + pages + (u32)(walk->size + walk->later) + rest, 0, sending.record)) {
		ringbuf_discard_dynptr(sending.record, 0);
		count(record->flags & (FLAG_WAITS | FLAG_WAKER | FLAG_EXITS) ? NO_STACK_OF_WAIT : RING_FULL);
		return 1;
	}
	walk->at = head + pages;
	copy_part(&sending, record->stack_base, walk->size);
	record->stack_size = (u32)walk->size - walk->left;
	record->holes = walk->holes;
	if (walk->holes || (walk->left && !walk->guessed))
		count(STACK_UNREADABLE);
	walk->guessed = 0;
	copy_part(&sending, record->below_base, walk->below_size);
	record->below_size = (u32)walk->below_size - walk->left;
	record->below_holes = walk->holes;
	copy_part(&sending, record->goroutine_base, walk->goroutine_size);
	record->goroutine_size = (u32)walk->goroutine_size - walk->left;
	record->goroutine_holes = walk->holes;
	put(sending.record, sizeof(struct record), space->frames, rows, sizeof(space->frames));
	put(sending.record, sizeof(struct record) + rows, space->anchors, anchors, sizeof(space->anchors));
	put(sending.record, sizeof(struct record) + rows + anchors, space->texts, texts, sizeof(space->texts));
	put(sending.record, sizeof(struct record) + rows + anchors + texts, space->kernel, kernel, sizeof(space->kernel));
	if (walk->sends)
		send_pages(&sending, head);
	u64 took = ktime_get_ns() - record->time_ns;
	record->run_ns = took;
	dynptr_write(sending.record, 0, record, sizeof(struct record), 0);
	ringbuf_submit_dynptr(sending.record, other_code(task, record->pid) ? 2 /* BPF_RB_FORCE_WAKEUP */ : wakes());
	count(SAMPLED);
	time_run(took);
	return 0;
}

/*
 * Prepare and submit a record. The two functions are not nested, so that each has room on the stack. With `leaves_out`,
 * unchanged pages of a long stack are left out, for which the scheduler has no time.
 */
inline_ int take_record(struct scratch_space *space, struct process *process, void *task, u64 ids, u64 began, u32 leaves_out)
{
	space->record.time_ns = began;
	space->record.pid = ids >> 32;
	space->record.tid = ids;
	prepare_record(space, process, task, leaves_out);
	return send_record(space, task);
}

/* Return the registers with which a task entered the kernel, or NULL if they cannot be read. */
inline_ struct pt_regs *user_registers(struct scratch_space *space, void *task)
{
	void *user = task_pt_regs(task);
	return user && !probe_read_kernel(&space->user, sizeof(space->user), user) ? &space->user : 0;
}

/*
 * Decide whether this overflow of the processor's event is a sample. The event overflows several times as often as samples
 * are wanted. Each slot of overflows_per_sample overflows has one sample, at a uniformly distributed random place. So a
 * program cannot run in step with the samples, and the number of samples is still that of the slots. All overflows of the
 * processor count, whatever process runs: each moment of the processor's time is equally likely to be sampled.
 */
inline_ u32 is_sample(struct scratch_space *space)
{
	u64 slot = overflows_per_sample;
	if (!slot)
		return 1;
	u64 place = get_prandom_u32() * slot >> 32;
	if (!space->slot_rest) {
		space->sample_distance = place;
		space->slot_rest = slot - place;
		place = get_prandom_u32() * slot >> 32;
	}
	space->sample_distance -= OVERFLOW;
	if (space->sample_distance > 0)
		return 0;
	space->sample_distance += space->slot_rest + place;
	space->slot_rest = slot - place;
	return 1;
}

SEC("perf_event/sample")
int sample(struct bpf_perf_event_data *context)
{
	u32 cpu = get_smp_processor_id();
	struct scratch_space *space = map_lookup(&scratch, &cpu);
	if (!space || !is_sample(space))
		return 0;
	u64 began = ktime_get_ns();
	u64 ids = get_current_pid_tgid();
	u32 tgid = ids >> 32;
	struct process *process = map_lookup(&processes, &tgid);
	if (!tgid || (!process && (!everything || tgid == own_tgid)))
		return 0;
	struct record *record = &space->record;
	record->flags = record->state = 0;
	record->call = -1;
	void *task = get_current_task_btf();
	if (FROM_USER(&context->regs)) {
		take_registers(record, &context->regs);
	} else {
		struct pt_regs *regs = user_registers(space, task);
		if (!regs || !FROM_USER(regs)) {
			count(NO_USER_MODE);
			return 0;
		}
		take_registers(record, regs);
		record->flags |= FLAG_KERNEL;
	}
	take_kernel(space, context, 0);
	take_record(space, process, task, ids, began, 1);
	return 0;
}

/*
 * A thread that exits gives up its memory, and a sample of the time that this takes finds no stack. From Linux 6.16 on the
 * kernel reports the exit before that. While the ring is half full, samples need its room.
 */
SEC("raw_tp/sched_process_exit")
int exits(void *context)
{
	u32 cpu = get_smp_processor_id();
	struct scratch_space *space = map_lookup(&scratch, &cpu);
	u64 ids = get_current_pid_tgid(), memory = 0;
	u32 tgid = ids >> 32;
	struct process *process = map_lookup(&processes, &tgid);
	if (!space || !tgid || (!process && (!everything || tgid == own_tgid)) || ringbuf_query(&ring, 0) > fill)
		return 0;
	void *task = get_current_task_btf();
	if (probe_read_kernel(&memory, 8, task + memory_of_task) || !memory)
		return 0;
	struct pt_regs *regs = user_registers(space, task);
	if (!regs || !FROM_USER(regs))
		return 0;
	struct record *record = &space->record;
	record->flags = FLAG_KERNEL | FLAG_EXITS;
	record->state = record->kernel = 0;
	record->call = -1;
	take_registers(record, regs);
	take_record(space, process, task, ids, ktime_get_ns(), 0);
	return 0;
}

/* ---- waits ---- */

/* Task states are those of the kernel (include/linux/sched.h). */
#define SAVED_NS 20000000 /* maximum saved time for stack copies, in ns of the thread's time */
#define TRACEPOINT_FRAMES 2 /* innermost kernel frames to skip at a tracepoint: this program and its caller */
#define TASK_ENDED 0xb0 /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */

struct switch_tracepoint {
	u64 preempted;
	u64 before;
	u64 next;
	u64 state; /* of the one before */
};

inline_ void report_end(struct scratch_space *space, struct wait *wait, u64 now, u64 waking, u32 flags)
{
	space->ended = (struct ended){
		.time_ns = now,
		.pid = wait->pid,
		.tid = wait->tid,
		.cpu = get_smp_processor_id(),
		.flags = flags,
		.off_ns = wait->off_ns,
		.waking_ns = waking,
		.state = wait->state,
		.call = wait->call,
		.blocked_ns = wait->blocked_ns,
		.runnable_ns = wait->runnable_ns,
		.object = wait->object,
		.waker = wait->waker,
	};
	if (!ringbuf_output(&ring, &space->ended, sizeof(space->ended), 1 /* BPF_RB_NO_WAKEUP */))
		return;
	count(WAIT_LOST);
	if (flags & FLAG_GONE || !wait->off_ns)
		return;
	wait->blocked_ns += waking - wait->off_ns;
	wait->runnable_ns += now - waking;
	wait->count += 1;
}

/* Copy the stack of a thread that leaves its processor. If it waits often, only some are copied, to limit the cost. */
inline_ void copy_wait(struct switch_tracepoint *context, struct scratch_space *space, struct wait *wait,
		       struct process *process, u64 ids, u64 now, struct limits *limit)
{
	void *task = get_current_task_btf();
	struct pt_regs *regs = user_registers(space, task);
	if (!regs || !FROM_USER(regs)) {
		wait->kernel = 1;
		return;
	}
	struct record *record = &space->record;
	record->flags = FLAG_KERNEL | FLAG_WAITS;
	take_registers(record, regs);
	record->state = wait->state;
	record->call = wait->call = CALL(regs);
	wait->object = regs->FIRST_FIELD;
	take_kernel(space, context, TRACEPOINT_FRAMES);
	if (take_record(space, process, task, ids, now, 0))
		return;
	wait->copied = 1;
	if (wait->due_ns + SAVED_NS < now)
		wait->due_ns = now - SAVED_NS;
	/* whoever waits for least_ns each time has a stack each time */
	u64 rest = limit->share * (ktime_get_ns() - now);
	wait->due_ns += rest < limit->least_ns ? rest : limit->least_ns;
}

/* Return whether the current thread begins to wait for a futex. */
inline_ u32 waits_for_lock(struct wait *wait)
{
	struct pt_regs *user = task_pt_regs(get_current_task_btf());
	u64 call = 0;
	if (!user || probe_read_kernel(&call, 8, &user->CALL_FIELD) || !WAITS_FOR_FUTEX((s32)call))
		return 0;
	wait->call = call;
	return !probe_read_kernel(&wait->object, 8, &user->FIRST_FIELD);
}

inline_ void leaves(struct switch_tracepoint *context, struct scratch_space *space, u64 now)
{
	u64 ids = get_current_pid_tgid();
	u32 tgid = ids >> 32, zero = 0;
	if (!tgid)
		return;
	struct process *process = map_lookup(&processes, &tgid);
	if (!process && (!everything || tgid == own_tgid))
		return;
	u64 task = context->before, state = context->preempted ? 0 : context->state;
	struct wait *wait = map_lookup(&waits, &task);
	if (state & TASK_ENDED) {
		if (wait) {
			report_end(space, wait, now, 0, FLAG_GONE);
			map_delete(&waits, &task);
		}
		return;
	}
	if (!wait) {
		space->fresh = (struct wait){.call = -1};
		map_update(&waits, &task, &space->fresh, 0);
		wait = map_lookup(&waits, &task);
		if (!wait) {
			count(WAIT_LOST);
			return;
		}
	}
	wait->pid = tgid;
	wait->tid = ids;
	if (wait->off_ns) {
		/* a few of a thousand arrivals are not seen; it ran when it was woken, or soon after */
		u64 woken = wait->waking_ns ? wait->waking_ns : now;
		count(ARRIVAL_MISSED);
		wait->on_ns = woken;
		report_end(space, wait, woken, woken, FLAG_ENDED);
		wait->off_ns = 0;
	}
	if (wait->on_ns) {
		wait->run_ns += now - wait->on_ns;
		wait->on_ns = 0;
	}
	if (wait->kernel || (!state && !runnable))
		return;
	wait->off_ns = now;
	wait->waking_ns = state ? 0 : now;
	wait->state = state;
	wait->call = -1;
	wait->copied = 0;
	wait->object = 0;
	wait->waker = (struct waker){};
	if (locks && !waits_for_lock(wait)) {
		wait->off_ns = 0;
		return;
	}
	struct limits *limit = map_lookup(&limits, &zero);
	if (!limit)
		return;
	if (wait->due_ns > now) {
		count(NO_STACK_OF_WAIT);
		return;
	}
	copy_wait(context, space, wait, process, ids, now, limit);
	if (wait->kernel)
		wait->off_ns = 0;
}

inline_ void arrives(struct scratch_space *space, u64 task, u64 now)
{
	u32 zero = 0;
	struct wait *wait = map_lookup(&waits, &task);
	if (!wait) {
		u32 tgid = 0;
		if (probe_read_kernel(&tgid, 4, (void *)(task + tgid_of_task)) || !tgid)
			return;
		if (!map_lookup(&processes, &tgid) && (!everything || tgid == own_tgid))
			return;
		struct wait *fresh = &space->fresh;
		*fresh = (struct wait){.pid = tgid, .call = -1, .on_ns = now};
		probe_read_kernel(&fresh->tid, 4, (void *)(task + pid_of_task));
		map_update(&waits, &task, fresh, 0);
		report_end(space, fresh, now, 0, FLAG_ENDED);
		return;
	}
	wait->on_ns = now;
	u64 off = wait->off_ns;
	if (!off)
		return;
	u64 waking = wait->waking_ns && wait->waking_ns <= now ? wait->waking_ns : now;
	struct limits *limit = map_lookup(&limits, &zero);
	if (wait->copied || (limit && now - off >= limit->least_ns)) {
		report_end(space, wait, now, waking, FLAG_ENDED);
	} else {
		wait->blocked_ns += waking - off;
		wait->runnable_ns += now - waking;
		wait->count += 1;
	}
	wait->off_ns = 0;
}

SEC("raw_tp/sched_switch")
int switched(struct switch_tracepoint *context)
{
	u64 now = ktime_get_ns();
	u32 cpu = get_smp_processor_id();
	struct scratch_space *space = map_lookup(&scratch, &cpu);
	if (!space)
		return 0;
	leaves(context, space, now);
	arrives(space, context->next, now);
	return 0;
}

/*
 * Store the current thread as the waker of a waiting thread, if it is in a system call or is a kernel thread. Interrupts
 * (a timer, a device) wake threads, too, without a waker. They are recognized if they interrupted user mode.
 */
inline_ void take_waker(void *context, struct wait *wait, u64 now)
{
	u64 ids = get_current_pid_tgid();
	u32 tgid = ids >> 32, cpu = get_smp_processor_id();
	struct scratch_space *space = map_lookup(&scratch, &cpu);
	if (!tgid || !space)
		return;
	void *task = get_current_task_btf();
	struct record *record = &space->record;
	struct waker *waker = &wait->waker;
	struct pt_regs *regs = user_registers(space, task);
	s32 call = -1;
	u32 of_user = regs && FROM_USER(regs);
	if (of_user)
		call = CALL(regs);
	if (of_user && call < 0)
		return;
	waker->pid = tgid;
	waker->tid = ids;
	waker->call = call;
	get_current_comm(waker->name, sizeof(waker->name));
	struct process *process = map_lookup(&processes, &tgid);
	if (!of_user || (!process && (!everything || tgid == own_tgid)))
		return;
	record->flags = FLAG_KERNEL | FLAG_WAKER;
	take_registers(record, regs);
	record->state = 0;
	record->call = call;
	take_kernel(space, context, TRACEPOINT_FRAMES);
	if (!take_record(space, process, task, ids, now, 0))
		waker->copied = 1;
}

SEC("raw_tp/sched_waking")
int woken(u64 *context)
{
	u64 task = context[0];
	u32 zero = 0;
	struct wait *wait = map_lookup(&waits, &task);
	if (!wait || !wait->off_ns || wait->waking_ns)
		return 0;
	u64 now = ktime_get_ns();
	struct limits *limit = map_lookup(&limits, &zero);
	wait->waking_ns = now;
	if (wakers && limit && (wait->copied || now - wait->off_ns >= limit->least_ns))
		take_waker(context, wait, now);
	return 0;
}

struct raw_tracepoint {
	u64 args[3];
};

/* Record a forked child from its first moment, with what is known about its parent's interpreter. */
SEC("raw_tp/sched_process_fork")
int forked(struct raw_tracepoint *context)
{
	u32 parent = 0, child = 0;
	if (!follow || probe_read_kernel(&parent, 4, (void *)(context->args[0] + tgid_of_task)) ||
	    probe_read_kernel(&child, 4, (void *)(context->args[1] + tgid_of_task)))
		return 0;
	if (parent == child)
		return 0;
	struct process *known = map_lookup(&processes, &parent);
	u64 *pages = map_lookup(&code_pages, &parent);
	if (known) {
		struct process copy = *known;
		map_update(&processes, &child, &copy, 0);
	} else {
		map_delete(&processes, &child); /* of one that had the number before */
	}
	if (pages) {
		u64 same = *pages;
		map_update(&code_pages, &child, &same, 0);
	}
	if (known || (everything && parent != own_tgid))
		wake();
	return 0;
}

/* Forget interpreter and stacks of a process that executes another program. */
SEC("raw_tp/sched_process_exec")
int executed(struct raw_tracepoint *context)
{
	u64 ids = get_current_pid_tgid();
	u32 tgid = ids >> 32;
	struct process *known = map_lookup(&processes, &tgid);
	if (known)
		known->runtime = known->go_m = 0;
	struct thread *thread = map_lookup(&threads, &tgid);
	if (thread) {
		thread->stack_end = 0;
		thread->state = 0;
		thread->gil = 0;
		thread->collecting = 0;
	}
	if (known || (everything && tgid != own_tgid))
		wake();
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
