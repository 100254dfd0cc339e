/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * One sample of a thread at one instant: registers, stack, and the frames of its interpreter.
 *
 * Runs at each expiry of an event of a processor (perf_event_open(2), PERF_EVENT_IOC_SET_BPF), in interrupt context, and
 * where threads leave their processors, in the scheduler: no page fault is served, so memory that is swapped out cannot
 * be read. All work is bounded. Interrupts are off at both, so a processor needs one scratch space. Addresses are taken
 * here, names are read later by the one who reads the ring.
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

/* Processes of the recording. Whoever is not in it is not looked at. */
struct map SEC("maps") processes = {HASH, 4, sizeof(struct process), 1 << 16, 0};
/* What is known of their threads; user space fills it, the program remembers thread states that it found. */
struct map SEC("maps") threads = {LRU_HASH, 4, sizeof(struct thread), 1 << 16, 0};
/* By tgid: pages of code that are mapped. Another number at a sample: the reader is to look at the process. */
struct map SEC("maps") code_pages = {LRU_HASH, 4, 8, 1 << 16, 0};
struct map SEC("maps") layouts = {ARRAY, 4, sizeof(struct layout), 64, 0};
/*
 * Code objects whose texts were in a record: process, address and head as one word, in the place that its low bits name. Two
 * that have one place are sent again and again.
 */
struct map SEC("maps") sent_codes = {ARRAY, 4, 8 * MOST_SENT, 1, 0};
struct map SEC("maps") limits = {ARRAY, 4, sizeof(struct limits), 1, 0};
/* Threads off their processors, and sums of their short waits. By the address of the task: the scheduler names no other. */
struct map SEC("maps") waits = {HASH, 8, sizeof(struct wait), 1 << 16, 0};
/* Records. max_entries is set before load. */
struct map SEC("maps") ring = {RINGBUF, 0, 0, 1 << 22, 0};
/* Pages of long stacks, as the last record of each had them. */
struct known_pages {
	u64 number; /* as in struct sent_pages */
	u64 failed; /* counts records that lacked pages: after them no page is known */
	u64 hashes[MOST_PAGES];
};
struct map SEC("maps") known_stacks = {LRU_HASH, sizeof(struct stack_key), sizeof(struct known_pages), 512, 0};
/* Counts by reason; behind them a histogram of run times: one word for each power of two of nanoseconds. */
struct map SEC("maps") counters = {PERCPU_ARRAY, 4, 8 * (REASONS + 32), 1, 0};

/* The state of a loop stands here, not on the stack: the verifier follows what it knows of a stack through every turn. */
struct walk {
	u64 frame;  /* the next one */
	u64 stop;   /* the one that is none */
	u64 cframe; /* the next one */
	u64 root;
	u64 interpreter; /* the next one */
	u64 state;       /* the next thread state */
	u64 states[MOST_STATES]; /* of the thread: in each interpreter that it runs one */
	u32 known;               /* so many of those */
	u32 several;             /* the process has several interpreters */
	u32 frames;
	u32 anchors;
	u32 texts;
	u32 tgid;
	u32 broken;
	u32 tid;
	u32 looks;        /* samples of this processor */
	u32 window_bytes; /* of the interpreter's memory that is read, from window on */
	u64 window;
	u64 last; /* the frame before */
	u32 own_frames;  /* those of the states before */
	u32 own_anchors;
	u32 lacks; /* why CFrames are not all there */
	u32 nth; /* CFrame whose run is the innermost one */
	u32 unread; /* why the run of the innermost one is not read to its end */
	u32 rows;  /* so many there are with it */
	u64 first;  /* its frame */
	u32 ended;  /* the innermost run did, at a frame whose link is outer */
	u64 outer;
	u32 at; /* in the record */
	u32 left;
	u32 guessed; /* the stack's end: the copy ends at the first page beyond sp's own that cannot be read */
	u32 zone;    /* bytes below sp that are copied, too */
	u64 from;
	u64 deadline;
	u64 holes;
	/* what waits on the stack */
	u64 mark;  /* of entry frames: their instruction and code */
	u64 code;
	u64 stack; /* bounds of what is searched */
	u64 stack_end;
	u64 heap;  /* frames are near it */
	u64 inner; /* the entry frame inside the one that is looked at */
	u64 entry;
	u64 part; /* of the stack, in the window */
	u64 link;  /* the next frame of a run */
	u64 best;  /* the innermost frame of the longest run */
	u64 slot;  /* the word that named it, or what led to it */
	u64 calls; /* of this one it was looked for the frame that it calls */
	u32 longest;
	u32 length;
	u32 leads; /* the run did, to its entry frame */
	u32 searched; /* the whole stack was for such words */
	u32 entries;
	u32 naming;
	u32 tried; /* so many of those */
	u32 kept;  /* slots that this processor has found */
	u64 low; /* bounds of the stack that was interrupted, and the lowest word that refers to it */
	u64 high;
	u64 lowest;
	/* tasks that await the running one */
	u64 running;   /* the frame of its outermost coroutine */
	u64 task;      /* whose awaiter is the next one */
	u64 coroutine; /* the next one */
	u64 kind;      /* the type of coroutines */
	u64 table;     /* of a set */
	u64 member;    /* the last one that was met */
	u32 slots;
	u32 members; /* so many of those */
	u32 unknown; /* something of a task cannot be read */
	/* Go */
	u64 own_end; /* of the stack that the thread is on; 0: not known */
	u64 goroutine_low; /* bounds of its goroutine's stack, if it has left that */
	u64 goroutine_high;
	u64 goroutine_from; /* the first word that is needed of that */
	u64 labels_at; /* offset of the address of a goroutine's labels, 0: none are wanted */
	u64 labels;    /* where that address is, 0: nowhere */
	u64 scheduler_from; /* the same of the scheduler's stack, if a signal interrupted that; 0: none did */
	u64 scheduler_high;
	u64 end; /* of the stack that is copied */
	u64 below; /* as record.below_base and its size */
	u64 below_size;
	u64 size;
	u64 goroutine_size;
	u32 sure; /* nothing else lies between sp and end */
	u32 unread_page;
	u64 salt;      /* of the hashes of its pages */
	u64 parts[4];  /* of the hash of one */
	u64 run_end;   /* the first copy ends here */
	u64 run_ended;
	u64 later;     /* bytes of the pages further out that have changed */
	u32 sends;     /* pages are left out of the record */
};

/* Set before load. */
const volatile u32 everything = 0;   /* each process is recorded */
const volatile u32 overflows_per_sample = 0; /* of the event, in units of 1/OVERFLOW; 0: a sample at each overflow */
const volatile u32 follow = 0;       /* and the children of those that are */
const volatile u32 tgid_of_task = 0; /* where struct task_struct has it */
const volatile u32 own_tgid = 0;     /* the profiler, which is not recorded */
const volatile u32 pid_of_task = 0;  /* as tgid_of_task */
const volatile u32 memory_of_task = 0; /* the same */
const volatile u32 code_of_memory = 0; /* where struct mm_struct counts pages of code */
const volatile u32 stack_of_memory = 0; /* where it has the place at which the first thread's stack begins */
const volatile u32 pointer_of_task = 0; /* as tgid_of_task: the thread pointer */
const volatile u32 kernel_stacks = 0; /* the kernel's frames are copied, too */
const volatile u32 locks = 0;        /* only waits for futexes are looked at */
const volatile u32 wakers = 0;       /* who wakes threads is recorded, with its stack */
const volatile u32 fill = 0xFFFFFFFF; /* bytes in the ring from which on its reader is woken */
const volatile u32 seeks_waiting = 0; /* activations that wait on stacks are looked for */
const volatile u32 follows_tasks = 0; /* the coroutines of tasks that await the running one are taken */
const volatile u32 hash_salt = 0;    /* a random number */
const volatile u32 runnable = 0;     /* threads that only wait for a processor are looked at, too */

struct namespaced {
	u32 pid;
	u32 tgid;
};

#if defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 x[31], sp, pc, pstate;
	u64 orig_x0; /* from here on not in what an event gives */
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
/* A thread pointer: the word there is its own address (ELF Handling For Thread-Local Storage, variant II). */
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

/* A code object that a sample has met: of one instant, so its head is the same further out. */
struct met {
	u64 turn;
	u64 code;
	u64 head;
};

/* Where a record is made before its size is known: each processor has one. */
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
	u64 turn; /* which sample this is, of those with an interpreter's frames */
	u64 window[2 * WINDOW / 8]; /* twice: what the verifier knows of a size are powers of two */
	struct layout layout;
	u64 signal[SIGNAL_STACK / 8];
	struct pt_regs user; /* these here, for Linux 6.1 gives all functions on the way to a record 512 bytes of stack */
	struct ended ended;
	struct wait fresh;
	struct stack_key stack;
	struct sent_pages sent;
	u64 page[PAGE / 8];
	u64 hashes[MOST_PAGES];
	struct known_pages unknown; /* zeros */
};
/* One entry a processor, set before load: a value that the kernel keeps for each processor has at most 32 KB. */
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

/* Flags of a record: is its reader to be woken? */
inline_ u64 wakes(void)
{
	return ringbuf_query(&ring, 0 /* BPF_RB_AVAIL_DATA */) < fill ? 1 /* BPF_RB_NO_WAKEUP */ : 2 /* BPF_RB_FORCE_WAKEUP */;
}

/* Its reader is woken by room in the ring that holds nothing. Where there is none, it is awake. */
inline_ void wake(void)
{
	void *nothing = ringbuf_reserve(&ring, 8, 0);
	if (nothing)
		ringbuf_discard(nothing, 2 /* BPF_RB_FORCE_WAKEUP */);
}

/* Has the process other code than at its last sample? */
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

/* Its names are in pages that were used a moment ago: what cannot be read is left out. */
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

/* Words of a code object that tell it from others, as one; 0: they cannot be read. */
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
 * Reads a frame, if it is not in the window: its place there in words, NONE where it cannot be read. Frames of newer
 * versions stand side by side, the outer ones before the inner ones: where one was near the last one, what lies before it
 * on its page is read with it.
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

/* Into walk->states: those of a thread. */
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
 * Rows of a chain from the run of its nth CFrame on, behind those of the states before. Does that run end where the next
 * CFrame's begins? One that is longer than what is followed, or than there is time for, is not asked.
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

/* Two words of the stack, in space->signal, that look like a CFrame. */
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

/* A frame of a run that is to lead to walk->outer. */
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
 * An evaluator enters its CFrame into the chain before it links it to the next one. That is the next one on the stack whose
 * run ends where the one outside of it begins. The chain's CFrames outside of the innermost one; 0: it is not near.
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

/* The rows of a chain whose CFrames name its frames. */
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

/* The chain of a thread's next state, behind those before it. */
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

/* ---- what waits on the stack: other greenlets (CPython 3.12 and later) ---- */

/*
 * As interpreters/cpython/greenlets.py has it. All entry frames name one instruction, and stand on the stack. The
 * innermost frame of the activation that one ends is named by some word of the stack between it and the one inside it:
 * of those whose frames lead to that very entry frame the one with most of them.
 */
#define AT_ONCE 2       /* words of a stack that are looked at in one turn */
#define CALLED 1024     /* bytes behind the beginning of a frame among which the one that it calls begins */
#define NEAR_ENTRY 1024 /* bytes outside of an entry frame in which its evaluator may name the frame */

/* Whatever the target's memory holds, the search ends in time. */
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

/* Where a frame's object says that it leads; 0: it has none, or that is another one's. */
inline_ u64 link_of(struct scratch_space *space, u64 object, u64 frame)
{
	struct layout *layout = &space->layout;
	if (!object || word(object + layout->object_frame) != frame)
		return 0;
	return word(object + layout->object_link);
}

/* The frame at walk->link, into space->words: the next one outside of it. 0: there is none, or that is on the stack. */
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

/* The same, and a row of it. */
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

/* How many frames lead from one, which lives and calls something, to the entry frame; 0: they do not. */
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

/* A word of the stack that may name a frame: this is asked only where none of the known places does. */
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
 * The next word that may name the innermost frame. After them: the frame that the best one calls is the next one in
 * memory, though no word of the stack may name it: a register does.
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

/* Entry frames of a part of the stack, innermost first. */
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

/* How the process's entry frames look, by the outermost frame of a thread's own chain. 0: it is none. */
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

/* own: rows of the thread's own chain. That is empty where a greenlet begins or ends. */
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

/* ---- the same, CPython 3.11 ---- */

/*
 * A CFrame names the next one outside of it, the outermost one the root. So from the stack's end inwards, each word that names
 * the root or a CFrame that was found may be the link of one. What their frames say is copied here; which of them
 * wait is decided where the copy of the stack is read, as by stops (interpreters/cpython/greenlet_cframes.py).
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

/* CFrames of a part of the stack, outermost first. */
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

/* The frame at walk->link, and a row of it. One that has a row leads where it did. */
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

/* ---- both ---- */

/*
 * What the code object is of a row of what waits, or of a task that awaits. None of an entry frame, which runs nothing. This
 * is not done where rows are made: that is as deep in functions as the stack allows that Linux 6.1 gives all of them.
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

/* What waits on the stack, behind all other rows. */
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
 * Into a record. The compiler would compare size - 1 where it knows that size is not 0, and Linux 6.1 does not see what
 * that says of size.
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

/* Is a page as the last record of its stack had it? Two pages with one hash are one: 64 bits, and a random salt. */
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

/* Which pages of the stack from sp on have changed? Sets walk->sends; 0: one cannot be read, so all is copied as it can be. */
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

/* A page that was sent is known, and those behind the first copy are sent one by one. */
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

/* What follows the first copy. Its pages are known now; if one could not be copied, none is, and the next record has all. */
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
 * A handler on a stack of its own refers to the stack that it interrupted: its signal frame has that one's sp. 0: no word
 * of it does, so it is not that.
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
 * Where a thread's stack begins, if that is between these. The first one's, and a little more: what lies above, up to the
 * end of the mapping, are the program's arguments and its environment. Others' where the thread pointer is: C libraries
 * have a thread's own data at the top of its stack, and stacks may have one mapping (glibc 2.42: no mapping guards them).
 * A Go program without one has it in its heap, as it has its stacks. The lowest bit says whether it is one of these.
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

/* A label. Addresses of its name and value, each with a number of bytes, are where space->words say. */
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

/* What Go calls stack.lo and stack.hi, of a struct g. */
inline_ u32 is_on_stack_of(u64 goroutine, u64 sp, u64 *low, u64 *high)
{
	*low = word(goroutine);
	*high = word(goroutine + 8);
	return sp >= *low && sp < *high;
}

/*
 * The goroutine that a thread of a Go program runs, and what is needed of its stack if the thread is on another one: that of
 * its scheduler (runtime.systemstack, runtime.morestack, calls of C), or of a signal handler. There the stack begins with the
 * sp that was saved, or where a register or the handler's stack refers to it: to call the vDSO, Go saves sp in a register.
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

/* The kernel's frames of this moment without the innermost ones; none of a thread that is interrupted in user mode. */
inline_ void take_kernel(struct scratch_space *space, void *context, u64 innermost)
{
	space->record.kernel = 0;
	if (!kernel_stacks)
		return;
	long size = get_stack(context, space->kernel, MOST_KERNEL * 8, innermost);
	if (size > 0)
		space->record.kernel = (u32)size / 8;
}

/* As much below sp as is copied: of a page below that is not there nothing. */
static __attribute__((noinline)) void find_zone(struct scratch_space *space)
{
	struct record *record = &space->record;
	u64 sp = record->regs[SP] & ~7ull, above = sp & (PAGE - 1);
	u32 zone = record->flags & FLAG_NARROW ? 0 : RED_ZONE;
	if (above < zone && probe_read_user(space->words, 8, (void *)(sp - zone)))
		zone = above;
	space->walk.zone = zone;
}

/* Where the stack ends that the thread is on, and what is copied of the one below it. */
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

/* A record's registers and the kernel's frames are there already: what is to be copied. */
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

/* A part of the stack of a record, at walk->from. */
inline_ void copy_part(struct sending *sending, u64 from, u64 size)
{
	struct walk *walk = &sending->space->walk;
	walk->from = from;
	walk->left = size;
	walk->holes = 0;
	loop(MOST_PAGES + 2, next_page, sending, 0);
}

/* The prepared record into the ring. 0: it was left there. */
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
		count(record->flags & (FLAG_WAITS | FLAG_WAKER) ? NO_STACK_OF_WAIT : RING_FULL);
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
 * One after the other, not one in the other: so each has room on the stack. leaves_out: unchanged pages of a long stack are,
 * which takes too long for the scheduler.
 */
inline_ int take_record(struct scratch_space *space, struct process *process, void *task, u64 ids, u64 began, u32 leaves_out)
{
	space->record.time_ns = began;
	space->record.pid = ids >> 32;
	space->record.tid = ids;
	prepare_record(space, process, task, leaves_out);
	return send_record(space, task);
}

/* With which a task entered the kernel; NULL where they cannot be read. */
inline_ struct pt_regs *user_registers(struct scratch_space *space, void *task)
{
	void *user = task_pt_regs(task);
	return user && !probe_read_kernel(&space->user, sizeof(space->user), user) ? &space->user : 0;
}

/*
 * Decide whether this overflow of the processor's event is a sample. The event overflows several times as often as samples
 * are wanted. Each slot of overflows_per_sample overflows has one sample, at a uniformly distributed random place. So a
 * program cannot run in step with the samples, and the number of samples is still that of the slots. All overflows of the
 * processor count, whoever runs: each moment of its time is as likely as any other.
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

/* ---- waits ---- */

/* The states of a task in the kernel (include/linux/sched.h). */
#define SAVED_NS 20000000 /* of a thread's share, that it may use at once */
#define TRACEPOINT_FRAMES 2 /* this program, and what calls it at a tracepoint */
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

/* The stack of one that leaves its processor. Of a thread that waits often only some: the copies take a share of its time. */
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

/* Does the thread that runs now wait for a futex? */
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
 * Whoever runs now wakes the thread of a wait: in a system call, or as a thread of the kernel's. An interrupt (a timer, a
 * device) wakes threads, too: it is nobody's, and known where it interrupted user mode.
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

/* A child is recorded from its first moment, with what is known of its parent's interpreter. */
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

/* Another program: nothing is known of its interpreter, or of its stack. */
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
