/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The constants and structures that the BPF program shares with its reader. collectors/bpf/ring_buffer_records.py has the
 * same ones, and a test compares both.
 */
#ifndef PYPROF_SAMPLER_H
#define PYPROF_SAMPLER_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define PAGE 4096
#define WINDOW 2048             /* bytes below an interpreter frame that are read together with the frame */
#define MOST_STACK (1 << 20)    /* maximum number of stack bytes in a record */
#define MOST_SEARCHED (256 << 10) /* maximum number of stack bytes that are searched for suspended interpreter frames */
#define WHOLE_STACK (128 << 10) /* bytes; of a longer stack, a record has only the pages that changed since its last record */
#define MOST_PAGES 512          /* maximum number of pages of such a stack; a longer one is copied up to limits.stack */
#define STACK_BEGINNING (8 << 10) /* bytes copied at the root of a still longer stack: a frame may exceed a record (alloca) */
#define UNKNOWN_STACK (64 << 10) /* bytes that are copied of a stack whose end is not known */
#define MOST_FRAMES 1024         /* maximum number of interpreter frames in a record */
#define SIGNAL_STACK (16 << 10)   /* bytes of an alternate stack that are searched for addresses in the interrupted one */
#define STACK_REACH (16ull << 20) /* maximum distance in bytes from sp to the end of its stack */
#define STACK_SLACK 256           /* bytes that are copied above the start of the main thread's stack (start_stack) */
#define MOST_ANCHORS 1024        /* maximum number of CFrames of CPython 3.10 to 3.12; each frame of 3.10 has one */
#define MOST_HEAD 16             /* maximum number of words of a code object's head that are copied */
#define MOST_TEXTS 256           /* maximum number of struct text in a record */
#define TEXT_BYTES 240           /* bytes of data in each of them */
#define MOST_LABELS 8            /* maximum number of labels of a goroutine; Go 1.23 and earlier store more in parts */
#define LABEL_NAME 64            /* bytes for the name of a label in a struct text */
#define MOST_SENT (1 << 15)      /* size of the table of code objects whose texts were in a record */
#define MOST_MET 64              /* size of the cache of code objects that occur in one sample */
#define MOST_THREADS 256         /* maximum number of thread states that are searched for that of a thread */
#define MOST_STATES 4            /* maximum number of thread states of one thread, each in a separate interpreter */
#define MOST_KERNEL 127          /* maximum number of kernel frames in a record */
#define MOST_ENTRIES 32          /* maximum number of suspended evaluator calls on a thread's stack (greenlets) */
#define MOST_NAMING 256          /* maximum number of stack words that may point to the innermost frame of such a call */
#define MOST_SLOTS 4             /* number of distances of such words that are stored for each process */
#define MOST_RUN_FRAMES 256      /* maximum number of frames of one such call */
#define GOROUTINE_WORDS 20       /* number of words of Go's struct g that are copied: stack bounds, m, sched, goid */
/* Number of registers in a record, in the order of DWARF, pc last. */
#if defined(__TARGET_ARCH_arm64)
#define REGISTERS 33 /* x0 to x30, sp */
#else
#define REGISTERS 17 /* 16 general ones */
#endif

#define OVERFLOW (1 << 16) /* the unit of overflows_per_sample is 1/OVERFLOW */
#define MOST_RUN_NS 1000000      /* maximum time in ns of a run of the program, after which it stops copying */

#include "losses.h"

/* struct record.flags */
#define FLAG_CHAIN 1      /* the record has the frames of an interpreter's thread state */
#define FLAG_HOLDS_LOCK 2 /* the thread holds the GIL */
#define FLAG_COLLECTING 4 /* the interpreter collects garbage */
#define FLAG_BROKEN 8     /* the chain of interpreter frames could not be read to its end */
#define FLAG_CUT 16       /* the stack copy ends before the stack does */
#define FLAG_NARROW 64    /* 32-bit code */
#define FLAG_KERNEL 32    /* the thread was in the kernel: the registers are those with which it entered the kernel */
#define FLAG_WAITS 128    /* the thread left its processor: a wait begins at time_ns */
#define FLAG_ENDED 256    /* it is a struct ended: a wait has ended */
#define FLAG_GONE 512     /* it is a struct ended: the thread has ended, and the record has its sums */
#define FLAG_WAKER 1024   /* the thread has just woken another thread, whose wait has a record */
#define FLAG_LABELS 4096  /* the texts are the labels of the goroutine; there may be none */
#define FLAG_UNLABELED 8192 /* the goroutine has labels that could not be read */
#define FLAG_PAGES 16384  /* struct sent_pages follows the kernel frames, and further pages follow the stack copies */
#define FLAG_EXITS 32768  /* taken when the thread began to exit: its stack is that of samples without one which follow */
#define FLAG_SEVERAL 2048 /* the frames are those of several thread states, one state after the other */

/* A sample. Rows and stack copies of variable size follow this head. */
struct record {
	u64 time_ns; /* CLOCK_MONOTONIC */
	u32 pid;
	u32 tid;
	u32 cpu;
	u32 flags;
	u64 regs[REGISTERS];
	u64 stack_base;
	u32 stack_size; /* bytes of the first stack copy, which follows all rows, padded to a page */
	u32 frames;     /* number of struct frame, which follow this head */
	u32 anchors;    /* number of struct anchor, which follow the frames */
	u32 run_ns;     /* time that the program ran before it submitted the record */
	u64 thread_state;
	u64 holes; /* bits of pages of the stack copy that could not be read: the copy has garbage there */
	/* A second copy: the stack that a signal handler on an alternate stack interrupted, or the root part of a cut stack. */
	u64 below_base; /* its address, 0: none */
	u64 below_holes; /* the same as holes, of the second copy */
	u32 below_size; /* bytes of the second copy, which follows the first */
	u32 texts;      /* number of struct text, which follow the anchors */
	u32 state;      /* FLAG_WAITS: state of the task when it left its processor; 0: it was preempted */
	s32 call;       /* number of the system call that the thread is in, -1: none */
	u32 kernel;     /* number of addresses of kernel frames, which follow the texts, innermost first */
	u32 waiting;    /* number of frames of suspended evaluator calls on the stack: the last rows */
	u32 awaiting;   /* number of frames of tasks that await the running one: the rows before those */
	u32 goroutine_size; /* bytes of a copy of its goroutine's stack, if the thread has left that; it follows the other copies */
	u64 goroutine;  /* address of the goroutine that the thread runs, 0: none */
	u64 goroutine_base; /* address of that copy */
	u64 goroutine_holes; /* the same as holes, of that copy */
	u64 goroutine_head[GOROUTINE_WORDS]; /* the memory at the address `goroutine` */
};

/*
 * The pages of a long stack that a record has. All other pages are as in the previous record of the same stack, whose number
 * is lower by one. The first copy has the pages from sp up to the first unchanged one. The changed pages above that follow
 * one by one after all stack copies, and at last the part of a page at the stack's end.
 */
struct sent_pages {
	u64 number; /* sequence number of the stack's records; 1: all pages were sent; 0: some could not be copied */
	u64 end;    /* end address of the stack, which identifies it within the process */
	u64 bits[MOST_PAGES / 64]; /* bits of the pages that were sent, counted from the one at the end */
};

/* The key of a long stack. */
struct stack_key {
	u64 end;
	u64 tgid;
};

/* The thread that woke a waiting thread. */
struct waker {
	u32 pid; /* 0: no thread did: an interrupt of an idle processor or of user mode */
	u32 tid;
	s32 call;   /* number of the system call that the waker was in, -1: none, it is a kernel thread */
	u32 copied; /* its stack is in a record of the same time with FLAG_WAKER */
	char name[16];
};

/* A wait that has ended, or the end of a thread. The first fields are those of struct record. */
struct ended {
	u64 time_ns; /* when the thread got a processor again */
	u32 pid;
	u32 tid;
	u32 cpu;
	u32 flags;
	u64 off_ns;    /* when the wait began; 0: before the program first saw the thread */
	u64 waking_ns; /* when the thread was woken; 0: not known */
	u32 state; /* of the task when it left its processor */
	s32 call;
	u64 blocked_ns; /* FLAG_GONE: the sums of struct wait */
	u64 runnable_ns;
	u64 object;     /* first argument of the system call, which is the address of a futex */
	struct waker waker;
};

/*
 * Value of frame.flags of a frame that was found by CFrames: is_entry in the low byte, above it the address of the caller's
 * frame. The lowest bit of that address is set if the frame calls a C function.
 */
#define WAITING_FLAGS(is_entry, outer, calls) ((is_entry) | ((outer) | (calls)) << 8)

/* One interpreter frame, with values of its memory. */
struct frame {
	u64 address;
	u64 code;
	u64 instr;
	u64 flags; /* low byte: owner or is_entry, high half: tlbc index; or WAITING_FLAGS if found by CFrames */
	u64 head;  /* hash of the words of the code object's head: if it differs, the code object is another one */
};

/* A CFrame on the C stack, and the interpreter frame to which it points. */
struct anchor {
	u64 address;
	u64 frame;
};

/*
 * The memory of a code object, or of an object to which its head refers, when the program first met the code object: both
 * may be freed before the reader gets the record. In a record with FLAG_LABELS it is a label of the goroutine: `address` is
 * the length of its name, `size` the length of its value. The name is in the first LABEL_NAME bytes of `data`, as far as
 * there is room, and the value follows.
 */
struct text {
	u64 address;
	u64 size;
	u8 data[TEXT_BYTES];
};

/*
 * Byte offsets in CPython's structures for threads and frames, see interpreters/cpython/layout.py. NONE: the version has no
 * such field.
 */
#define NONE 0xFFFFFFFFu
#define SEEKS_ENTRIES 1
#define SEEKS_CFRAMES 2
struct layout {
	u32 interpreters_head; /* in _PyRuntime */
	u32 interpreter_next;
	u32 threads_head;
	u32 thread_next;
	u32 thread_id;
	u32 native_id;
	u32 thread_frame; /* in a thread state: pointer to the innermost frame */
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
	u32 code_head; /* in a code object: words that distinguish it from others */
	u32 code_words; /* number of these words, MOST_HEAD at most */
	u32 code_texts; /* number of the last ones that point to its names and lines, four at most */
	u64 code_mask;
	u32 gil_holder;
	u32 gil_locked;
	u32 tid_in_pthread; /* for versions without native_id: offset of the tid in struct pthread */
	u32 instr_bytes;
	u32 frame_bytes; /* number of bytes that are read of a frame, with all fields above, 112 at most */
	u32 run_ends;    /* a frame whose flag is at least this value ends the frames of one evaluator call */
	u32 seeks;       /* how suspended evaluator calls on C stacks (greenlets) are found: SEEKS_...; 0: not at all */
	u32 frame_object; /* in a frame: pointer to its frame object */
	u32 object_frame; /* in a frame object: pointer to its frame */
	u32 object_link;  /* in a frame object: pointer to the caller's frame */
	u32 frame_height; /* in a frame: four bytes that are all ones if it calls a C function; NONE: nothing says so */
	u32 running_task; /* in a thread state: pointer to the running task; NONE: awaiting tasks are not known */
	u32 task_awaited_by; /* in a task: pointer to the task that awaits it, or to a set of such tasks */
	u32 task_is_set; /* in a task: a byte that is not 0 if task_awaited_by is a set */
	u32 task_coroutine; /* in a task: pointer to its coroutine */
	u32 object_type; /* in an object: pointer to its type */
	u32 coroutine_frame; /* in a coroutine: its frame */
	u32 frame_top; /* in a suspended frame: pointer to the top of its value stack */
	u32 set_used; /* in a set: number of its members */
	u32 set_table; /* in a set: pointer to its slots */
	u32 set_mask; /* in a set: number of its slots, minus one */
	u32 unused;
};

/* What is known about a recorded process, by tgid. */
struct process {
	u64 runtime; /* address of the interpreter's runtime structure; 0: no interpreter */
	u32 layout;  /* index in the table of layouts */
	u32 unused;
	u64 namespace_dev; /* device and inode of its pid namespace; 0: that of the profiler */
	u64 namespace_ino;
	u64 slots[MOST_SLOTS]; /* distances below an entry frame of stack words that pointed to its innermost frame */
	u64 mark; /* instruction and code of its entry frames, as seen in the last chain with one; 0: none was seen */
	u64 code;
	u64 heap; /* an address near which the interpreter allocates frames */
	s64 go_tls;     /* Go: distance from the thread pointer of a word that has the address of a struct g */
	u32 go_m;       /* offset in a struct g of the address of its struct m; 0: no Go program */
	u32 go_g0;      /* offsets in a struct m of addresses of struct g: of the stack on which the scheduler runs, */
	u32 go_gsignal; /* of the one on which signal handlers run, */
	u32 go_curg;    /* and of the goroutine that the thread runs */
	u32 go_sched;   /* offset in a struct g of the stack pointer with which the goroutine left its stack, */
	u32 go_labels;  /* and of the address of its labels (runtime/pprof); 0: the program sets none */
};

/* The waits of a thread of the recording, by the address of its task. */
struct wait {
	u64 off_ns;      /* when it left its processor; 0: it runs */
	u64 waking_ns;   /* when it was woken, or was preempted; 0: it sleeps */
	u64 blocked_ns;  /* sums over waits without a separate record */
	u64 runnable_ns;
	u64 count;       /* number of these waits */
	u64 due_ns;      /* time before which no stack of it is copied at a wait */
	u64 on_ns;       /* when it got its processor; 0: not known, or it has none */
	u64 run_ns;      /* total on-CPU time, of runs whose begin and end were seen */
	u32 pid;
	u32 tid;
	u32 state;
	s32 call;
	u32 copied; /* its stack was copied for the current wait */
	u32 kernel; /* it is a kernel thread */
	u64 object; /* the same as in struct ended */
	struct waker waker;
};

/* Limits that the reader may change while the program runs. */
struct limits {
	u64 stack;    /* number of stack bytes that are copied */
	u64 least_ns; /* minimum duration of a wait with a separate record, unless its stack was copied */
	u64 share;    /* at most 1/share of a thread's time is spent on copies of its stack at waits */
};

/* What is known about a thread of a recorded process, by tid. */
struct thread {
	u64 stack_end; /* 0: not known; lowest bit: the memory below it is only this thread's stack */
	u64 state;     /* address of its thread state, 0: not known */
	u64 gil;       /* address of the GIL of its interpreter, 0: not known */
	u64 collecting; /* address of a flag that is not 0 while the interpreter collects garbage, 0: not known */
};

#endif
