/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the program and its reader share. Values only: collectors/bpf/ring_buffer_records.py states the same, a test compares both. */
#ifndef PYPROF_SAMPLER_H
#define PYPROF_SAMPLER_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define PAGE 4096
#define WINDOW 2048             /* bytes before a frame of an interpreter that are read with it */
#define MOST_STACK (1 << 20)    /* bytes of a stack that a record holds */
#define MOST_SEARCHED (256 << 10) /* bytes of a stack that are searched for frames that wait on it */
#define WHOLE_STACK (128 << 10) /* of a longer one, a record holds the pages that its last record did not hold as they are now */
#define MOST_PAGES 512          /* of such a stack; a longer one is copied up to a limit */
#define STACK_BEGINNING (8 << 10) /* where a longer one began, this is copied, too: a frame may be larger than a record (alloca) */
#define UNKNOWN_STACK (64 << 10) /* the same, of a thread whose stack's end is not known */
#define MOST_FRAMES 1024         /* of an interpreter, in a record */
#define SIGNAL_STACK (16 << 10)   /* bytes of a second stack that are searched for the one below it */
#define STACK_REACH (16ull << 20) /* sp is so near to the end of its own stack */
#define STACK_SLACK 256           /* bytes that are copied beyond the place at which a program's first stack begins */
#define MOST_ANCHORS 1024        /* CFrames of CPython 3.10 to 3.12: each frame of 3.10 has one */
#define MOST_HEAD 16             /* words of a code object that are copied */
#define MOST_TEXTS 256           /* in a record */
#define TEXT_BYTES 240           /* of each */
#define MOST_LABELS 8            /* of a goroutine; Go 1.23 and earlier have others in several parts */
#define LABEL_NAME 64
#define MOST_SENT (1 << 15)      /* code objects of which it is known that their texts were in a record */
#define MOST_MET 64              /* code objects that a sample has met, and knows when it meets them again */
#define MOST_THREADS 256         /* thread states that are looked through for one */
#define MOST_STATES 4            /* of a thread: each in an interpreter of its own */
#define MOST_KERNEL 127          /* frames of the kernel in a record */
#define MOST_ENTRIES 32          /* activations of an interpreter that wait on a thread's stack */
#define MOST_NAMING 256          /* words of a stack that may name the innermost frame of one */
#define MOST_SLOTS 4             /* places of such words that are known of a process */
#define MOST_RUN_FRAMES 256      /* of one */
#define GOROUTINE_WORDS 20       /* of a struct g of Go: stack bounds, m, sched, goid */
/* In the order of DWARF, pc last. */
#if defined(__TARGET_ARCH_arm64)
#define REGISTERS 33 /* x0 to x30, sp */
#else
#define REGISTERS 17 /* 16 general ones */
#endif

#define OVERFLOW (1 << 16) /* the unit of overflows_per_sample is 1/OVERFLOW */
#define MOST_RUN_NS 1000000      /* a run of the program that takes longer stops copying */

#include "losses.h"

/* struct record.flags */
#define FLAG_CHAIN 1      /* frames are those of a thread state */
#define FLAG_HOLDS_LOCK 2
#define FLAG_COLLECTING 4
#define FLAG_BROKEN 8     /* the chain of frames ends where it could not be read */
#define FLAG_CUT 16       /* the stack copy ends before the stack does */
#define FLAG_NARROW 64    /* 32-bit code */
#define FLAG_KERNEL 32    /* taken in the kernel: registers are those with which it was entered */
#define FLAG_WAITS 128    /* taken when the thread left its processor: a wait begins at time_ns */
#define FLAG_ENDED 256    /* struct ended: a wait is over */
#define FLAG_GONE 512     /* struct ended: the thread is, these are its sums */
#define FLAG_WAKER 1024   /* taken when the thread woke another one that has a record of its wait */
#define FLAG_LABELS 4096  /* the texts are labels of the goroutine; none if it has none */
#define FLAG_UNLABELED 8192 /* it has labels that could not be read */
#define FLAG_PAGES 16384  /* struct sent_pages is behind the kernel's frames, and pages behind the copies */
#define FLAG_SEVERAL 2048 /* frames are those of several thread states, one after the other */

struct record {
	u64 time_ns; /* CLOCK_MONOTONIC */
	u32 pid;
	u32 tid;
	u32 cpu;
	u32 flags;
	u64 regs[REGISTERS];
	u64 stack_base;
	u32 stack_size; /* bytes, behind the rows, padded to a page */
	u32 frames;     /* rows of struct frame behind this head */
	u32 anchors;    /* rows of struct anchor behind those */
	u32 run_ns;     /* that the program took before the record was submitted */
	u64 thread_state;
	u64 holes; /* pages of the stack copy that could not be read, by bit: the copy has garbage there */
	u64 below_base; /* the stack that this one interrupted, from the first word that it refers to; or where a cut one began; 0: none */
	u64 below_holes;
	u32 below_size; /* bytes, behind those of the first copy */
	u32 texts;      /* rows of struct text behind those of anchors */
	u32 state;      /* FLAG_WAITS: why it left, as the kernel's task states; 0: another thread took its processor */
	s32 call;       /* the system call that it is in, -1: none */
	u32 kernel;     /* addresses of the kernel's frames behind the texts, innermost first */
	u32 waiting;    /* the last so many rows of frames are of activations that wait on the stack */
	u32 awaiting;   /* and so many before them of tasks that await the running one */
	u32 goroutine_size; /* bytes of the stack that the thread's goroutine has left, behind those of the other copies */
	u64 goroutine;  /* address of the goroutine that the thread runs, 0: none */
	u64 goroutine_base;
	u64 goroutine_holes;
	u64 goroutine_head[GOROUTINE_WORDS]; /* the memory at that address, if there is one */
};

/*
 * Which pages of a stack a record holds. The others are as in the record of the same stack with the number before. The first
 * copy has those from sp on up to the first one that is unchanged. The changed ones further out follow one by one, behind all
 * copies, and at last the part of a page at the stack's end.
 */
struct sent_pages {
	u64 number; /* counts the records of a stack; 1: all pages were sent; 0: some could not be copied */
	u64 end;    /* of the stack, which names it in its process */
	u64 bits[MOST_PAGES / 64]; /* those that were sent, counted from the one at the end */
};

/* A long stack. */
struct stack_key {
	u64 end;
	u64 tgid;
};

/* Who woke a thread. */
struct waker {
	u32 pid; /* 0: nobody is known: an idle processor, or a thread that was interrupted in user mode */
	u32 tid;
	s32 call;   /* the system call in which it did, -1: none, a thread of the kernel's */
	u32 copied; /* its stack is in a record of that time with FLAG_WAKER */
	char name[16];
};

/* A wait that is over, or the end of a thread. Begins as a record does. */
struct ended {
	u64 time_ns; /* it is on a processor again */
	u32 pid;
	u32 tid;
	u32 cpu;
	u32 flags;
	u64 off_ns;    /* since when; 0: since before it was looked at */
	u64 waking_ns; /* when it could have run again; 0: not known */
	u32 state;
	s32 call;
	u64 blocked_ns; /* FLAG_GONE: the sums of struct wait */
	u64 runnable_ns;
	u64 object;     /* first argument of the system call: of a futex its address */
	struct waker waker;
};

/*
 * Flags of a frame that was found by CFrames: is_entry in the low byte, from there on the address of the frame outside of it,
 * whose lowest bit says: it calls a C function.
 */
#define WAITING_FLAGS(is_entry, outer, calls) ((is_entry) | ((outer) | (calls)) << 8)

/* One frame of an interpreter, as its memory was. */
struct frame {
	u64 address;
	u64 code;
	u64 instr;
	u64 flags; /* owner or is_entry: the low byte; tlbc index: the high half. Of one that was found by CFrames: see WAITING_FLAGS */
	u64 head;  /* words of the code object's head, folded: another value, another code object */
};

/* A CFrame on the C stack, and the frame that it names. */
struct anchor {
	u64 address;
	u64 frame;
};

/*
 * A code object, or an object that its head refers to, as they were when it was met first: both may be gone before the
 * reader comes. In a record with FLAG_LABELS a label of the goroutine: `address` is the length of its name, `size` that of
 * its value, and both are in `data`: the name in the first LABEL_NAME bytes, or as much of it as has room.
 */
struct text {
	u64 address;
	u64 size;
	u8 data[TEXT_BYTES];
};

/* How CPython keeps threads and frames: interpreters/cpython/layout.py, by byte offset; NONE where a version has no such field. */
#define NONE 0xFFFFFFFFu
#define SEEKS_ENTRIES 1
#define SEEKS_CFRAMES 2
struct layout {
	u32 interpreters_head; /* of _PyRuntime */
	u32 interpreter_next;
	u32 threads_head;
	u32 thread_next;
	u32 thread_id;
	u32 native_id;
	u32 thread_frame; /* of the pointer to the innermost frame */
	u32 thread_cframe;
	u32 root_cframe;
	u32 cframe_current;
	u32 cframe_previous;
	u32 base_frame;
	u32 frame_code;
	u32 frame_previous;
	u32 frame_instr;
	u32 frame_flag; /* owner, or is_entry */
	u32 frame_tlbc;
	u32 code_head; /* words of a code object that tell it from others */
	u32 code_words; /* so many, MOST_HEAD at most */
	u32 code_texts; /* so many of the last ones point to its names and lines, four at most */
	u64 code_mask;
	u32 gil_holder;
	u32 gil_locked;
	u32 tid_in_pthread; /* of versions without native_id */
	u32 instr_bytes;
	u32 frame_bytes; /* that are read of a frame: all of the above, 112 at most */
	u32 run_ends;    /* a flag that is at least this ends a run */
	u32 seeks;       /* activations wait on C stacks that no chain has, greenlets: they are found by SEEKS_...; 0: none */
	u32 frame_object; /* of the pointer to a frame's object */
	u32 object_frame; /* in that, of the pointer back */
	u32 object_link;  /* and of the frame that is outside of it */
	u32 frame_height; /* a half word of ones where the frame calls a C function; NONE: nothing says so */
	u32 running_task; /* of a thread state; NONE: it is not known which tasks await which */
	u32 task_awaited_by; /* of a task: the pointer to the one that awaits it, or to a set of those */
	u32 task_is_set; /* a byte: the set it is */
	u32 task_coroutine;
	u32 object_type; /* of an object */
	u32 coroutine_frame;
	u32 frame_top; /* of a suspended frame: the pointer to where its stack ends */
	u32 set_used; /* how many members a set has */
	u32 set_table;
	u32 set_mask; /* it has so many slots, and one more */
	u32 unused;
};

/* By tgid. */
struct process {
	u64 runtime; /* 0: no interpreter */
	u32 layout;  /* place in the table of layouts */
	u32 unused;
	u64 namespace_dev; /* of its pid namespace, 0: ours */
	u64 namespace_ino;
	u64 slots[MOST_SLOTS]; /* so far below an entry frame a word of the stack named the innermost frame of its activation */
	u64 mark; /* of its entry frames, as the last chain with one had it: instruction and code; 0: none was met */
	u64 code;
	u64 heap; /* frames are near it */
	s64 go_tls;     /* Go: the word so far from the thread pointer is the address of a struct g */
	u32 go_m;       /* offset in that of the address of its struct m; 0: no Go program */
	u32 go_g0;      /* and in that of those of others: with the stack on which the scheduler runs, */
	u32 go_gsignal; /* on which signal handlers run, */
	u32 go_curg;    /* and of the goroutine that the thread runs */
	u32 go_sched;   /* offset in a struct g of the stack pointer with which it left its stack, */
	u32 go_labels;  /* and of the address of its labels (runtime/pprof); 0: the program sets none */
};

/* By task, of threads of the recording. */
struct wait {
	u64 off_ns;      /* since when it is off its processor; 0: it is not */
	u64 waking_ns;   /* when it was woken, or lost its processor to another thread; 0: it sleeps */
	u64 blocked_ns;  /* sums of waits without a record of their own */
	u64 runnable_ns;
	u64 count;       /* of them */
	u64 due_ns;      /* no stack is copied before */
	u64 on_ns;       /* since when it has its processor; 0: not known, or it has none */
	u64 run_ns;      /* sum of its turns, as far as it was seen to come and to leave */
	u32 pid;
	u32 tid;
	u32 state;
	s32 call;
	u32 copied; /* its stack was */
	u32 kernel; /* a thread of the kernel's own */
	u64 object; /* as of struct ended */
	struct waker waker;
};

/* What may change while the program runs. */
struct limits {
	u64 stack;    /* bytes that are copied: what the walks needed so far */
	u64 least_ns; /* shorter waits have no record of their own, unless their stack was copied */
	u64 share;    /* of a thread's time at most 1/share goes into copies of shorter waits */
};

/* By tid. */
struct thread {
	u64 stack_end; /* 0: not known; the lowest bit: what lies below is nothing but its stack */
	u64 state;     /* its thread state, 0: not known */
	u64 gil;
	u64 collecting;
};

#endif
