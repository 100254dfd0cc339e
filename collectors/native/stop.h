/* SPDX-License-Identifier: MIT */
/* One ptrace stop of one thread: SEIZE, INTERRUPT, read registers, stack and interpreter frames, DETACH. */
enum { SEIZE = 0x4206, INTERRUPT = 0x4207, GETREGSET = 0x4204, DETACH = 17, EVENT_STOP = 128, SIGTRAP = 5, SIGCHLD = 17 };
enum { P_PID = 1, WSTOPPED = 2, WNOHANG = 1, WALL = 0x40000000, NT_PRSTATUS = 1, CLOCK_MONOTONIC = 1 };
enum { QUERY_EXECUTABLE = 4, MOST_ERRNO = 4095, REGISTERS = 36, SLICE_NS = 100000 };
#define PROCMAP_QUERY 0xC0686611ul

/* collectors/native/sampling_loop_bindings.py has the same structures and numbers. */
enum ending { TAKEN, HELD, PENDING, REFUSED, LOST };

/* An executable mapping. */
struct mapping {
	u64 start, end, offset, inode, major, minor;
};

/* Facts about the architecture, and constants. */
struct machine {
	u64 registers_size;
	s64 sp, pc, call, result; /* indices of register words; call: -1 if no register has the number of the system call */
	u64 call_code, call_size; /* code and size of the system call instruction */
	u64 zone, slack, least;   /* bytes of a stack copy: below sp, above the highest needed word, minimum of all */
	u64 bound_ns;             /* maximum time to wait for a thread to stop */
	u64 window_ns;            /* time after which a thread's share of a processor is computed */
	double whole;             /* share from which on a thread counts as always running */
};

/* A process, and how its mappings and threads are checked. */
struct process {
	s64 maps; /* descriptor of its maps, -1: mappings are not queried */
	u64 mappings, mappings_count; /* struct mapping, ascending */
	s64 folder, size_file;        /* descriptors of /proc/PID and its statm, -1: not checked */
	u64 threads, size;            /* expected values: links of the task directory, mapped pages without data */
};

/* A thread to check, and what the checks have found. */
struct thread {
	s64 tid, schedstat, syscall, sched; /* descriptors of its files */
	u64 process, frames; /* addresses of struct process and struct frames; frames is 0 if no interpreter frames are read */
	u64 frames_size; /* buffer size for its interpreter frames */
	u64 slept_size; /* size of its schedstat in the sleep in which it was last seen, 0: it is not known to sleep */
	u8 slept[64];
	u64 start, end, top; /* bounds of its stack, highest address that a walk needed */
	u64 most, last_sp; /* maximum size of a stack copy in bytes, sp at its last stop */
	u64 share_ran, share_waited; /* collectors/ptrace/sampled_thread.py */
	double share, credit;
	/* sums over all checks */
	u64 still, asked, waiting, ran_ns, waits, shared; /* shared: number of samples because of its processor share */
};

/* The result of an attempt to sample a thread. */
struct sample {
	u64 check, due; /* indices of the check and of the sampling time */
	s64 ending, error, status;
	u64 whole; /* 1 if everything was read as planned */
	u64 at_ns, since_ns, resumed_ns;
	u64 base, size;
	u64 frames, frames_end; /* local addresses of begin and end of the read interpreter data, 0 if there is none */
	u64 registers[REGISTERS];
};

struct query {
	u64 size, flags, address, start, end, vma_flags, page_size, offset, inode;
	u32 major, minor, name_size, id_size;
	u64 name, id;
};

static u64 now_ns(void)
{
	struct timespec at;
	call2(CLOCK_GETTIME, CLOCK_MONOTONIC, (u64)&at);
	return at.sec * 1000000000ul + at.nsec;
}

static s64 poll_stop(s64 tid)
{
	s32 info[32];
	info[0] = 0;
	s64 failed = call6(WAITID, P_PID, tid, (u64)info, WSTOPPED | WNOHANG | WALL, 0, 0);
	return failed ? failed : info[0] ? info[6] : 0;
}

static int wait_sigchld(u64 most_ns)
{
	u64 set = 1ul << (SIGCHLD - 1);
	struct timespec most = {most_ns / 1000000000ul, most_ns % 1000000000ul};
	return call4(RT_SIGTIMEDWAIT, (u64)&set, 0, (u64)&most, sizeof(set)) > 0;
}

static s64 read_registers(s64 tid, u64 *registers)
{
	struct iovec into = {(u64)registers, 8 * REGISTERS};
	s64 failed = call4(PTRACE, GETREGSET, tid, NT_PRSTATUS, (u64)&into);
	return failed ? failed : (s64)into.size;
}

static s64 read_memory(s64 tid, u64 from, u64 size, u64 into)
{
	struct iovec here = {into, size}, there = {from, size};
	return call6(PROCESS_VM_READV, tid, (u64)&here, 1, (u64)&there, 1, 0);
}

#include "frames.h"

/* Return whether the mapping at pc is one of the expected ones. */
static int is_known(const struct process *process, u64 pc)
{
	if (process->maps < 0)
		return 1;
	struct query query;
	for (u64 n = 0; n < sizeof(query) / 8; n++)
		((volatile u64 *)&query)[n] = 0;
	query.size = sizeof(query);
	query.flags = QUERY_EXECUTABLE;
	query.address = pc;
	if (call3(IOCTL, process->maps, PROCMAP_QUERY, (u64)&query))
		return 0;
	const struct mapping *mappings = (const struct mapping *)process->mappings;
	u64 low = 0, high = process->mappings_count;
	while (low < high) {
		u64 middle = (low + high) / 2;
		if (mappings[middle].start <= query.start)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return 0;
	const struct mapping *found = mappings + low - 1;
	return found->start == query.start && found->end == query.end && found->offset == query.offset &&
	       found->inode == query.inode && found->major == query.major && found->minor == query.minor;
}

/* Return whether the thread was stopped in user mode, and is not about to repeat a system call. */
static int in_user_mode(const struct machine *machine, s64 tid, const u64 *registers)
{
	if (machine->call >= 0)
		return (s64)registers[machine->call] < 0;
	s64 result = registers[machine->result];
	if (result < 0 && result >= -MOST_ERRNO)
		return 0;
	u64 code = 0;
	return read_memory(tid, registers[machine->pc], machine->call_size, (u64)&code) == (s64)machine->call_size &&
	       code != machine->call_code;
}

/* Return the size of the stack copy from `base` on. */
static u64 copy_size(const struct machine *machine, const struct thread *thread, u64 base)
{
	if (!thread->top)
		return thread->end - base;
	u64 end = thread->top + machine->slack, least = base + machine->least;
	end = end < least ? least : end;
	return (end < thread->end ? end : thread->end) - base;
}

/* Read registers, stack and interpreter frames of a stopped thread. Returns 0 if that needs Python. */
static int copy(const struct machine *machine, const struct thread *thread, struct sample *sample, u64 into,
		struct reading *reading)
{
	const u64 *registers = sample->registers;
	s64 tid = thread->tid;
	if (read_registers(tid, sample->registers) != (s64)machine->registers_size || !in_user_mode(machine, tid, registers))
		return 0;
	u64 sp = registers[machine->sp];
	if (sp < thread->start + machine->zone || sp >= (thread->top ? thread->top : thread->end))
		return 0;
	sample->base = (sp - machine->zone) & ~7ul;
	sample->size = copy_size(machine, thread, sample->base);
	if (sample->size > thread->most || read_memory(tid, sample->base, sample->size, into) != (s64)sample->size ||
	    !is_known((const struct process *)thread->process, registers[machine->pc]))
		return 0;
	if (!thread->frames)
		return 1;
	reading->frames = (const struct frames *)thread->frames;
	reading->tid = tid;
	if (!read_frames(reading, sample->base, sample->size, into))
		return 0;
	sample->frames = reading->data;
	sample->frames_end = reading->end;
	return 1;
}

/*
 * Make all system calls of a stop for a thread that is not traced, to warm up caches and page tables. The kernel answers
 * ESRCH. waitid(2) is left out, because it would collect the status of a child of the profiler.
 */
static void rehearse(const struct machine *machine, const struct thread *thread, struct sample *sample, u64 into,
		     struct reading *reading)
{
	const struct process *process = (const struct process *)thread->process;
	u64 base = (thread->last_sp - machine->zone) & ~7ul;
	call4(PTRACE, INTERRUPT, thread->tid, 0, 0);
	wait_sigchld(0);
	read_registers(thread->tid, sample->registers);
	if (thread->start <= base && base < thread->end) {
		u64 size = copy_size(machine, thread, base);
		if (size <= thread->most)
			read_memory(thread->tid, base, size, into);
		if (thread->frames) {
			reading->frames = (const struct frames *)thread->frames;
			reading->tid = thread->tid;
			read_frames(reading, base, size <= thread->most ? size : 0, into);
		}
	}
	if (process->mappings_count)
		is_known(process, ((const struct mapping *)process->mappings)->start);
	call4(PTRACE, DETACH, thread->tid, 0, 0);
}

/* Wait until a thread stops, and return its wait status. Returns 0 if it does not stop in time. */
static s64 await(const struct machine *machine, s64 tid, struct sample *sample)
{
	u64 deadline = sample->since_ns + machine->bound_ns;
	for (;;) {
		u64 now = now_ns(), left = now < deadline ? deadline - now : 0;
		int woken = wait_sigchld(left < SLICE_NS ? left : SLICE_NS); /* another thread of ours may take the signal */
		s64 status = poll_stop(tid);
		if (status || woken || now >= deadline)
			return status;
		sample->since_ns = now_ns();
	}
}

/* Stop a thread, sample it and detach from it. sample->ending says how far that succeeded. */
static void stop(const struct machine *machine, const struct thread *thread, struct sample *sample, u64 into,
		 struct reading *reading)
{
	s64 tid = thread->tid;
	sample->error = call4(PTRACE, SEIZE, tid, 0, 0);
	sample->ending = REFUSED;
	if (sample->error)
		return;
	sample->since_ns = now_ns();
	sample->ending = call4(PTRACE, INTERRUPT, tid, 0, 0) ? LOST : PENDING;
	if (sample->ending == LOST)
		return;
	sample->status = await(machine, tid, sample);
	if (sample->status <= 0)
		return;
	sample->ending = HELD;
	sample->at_ns = now_ns();
	if (sample->status != (SIGTRAP | EVENT_STOP << 8))
		return;
	sample->whole = copy(machine, thread, sample, into, reading);
	if (!sample->whole)
		return;
	sample->ending = call4(PTRACE, DETACH, tid, 0, 0) ? HELD : TAKEN;
	sample->resumed_ns = now_ns();
}
