/* SPDX-License-Identifier: MIT */
/* One stop of one thread: SEIZE, INTERRUPT, registers, stack, interpreter's frames, DETACH. */
enum { SEIZE = 0x4206, INTERRUPT = 0x4207, GETREGSET = 0x4204, DETACH = 17, EVENT_STOP = 128, SIGTRAP = 5, SIGCHLD = 17 };
enum { P_PID = 1, WSTOPPED = 2, WNOHANG = 1, WALL = 0x40000000, NT_PRSTATUS = 1, CLOCK_MONOTONIC = 1 };
enum { QUERY_EXECUTABLE = 4, MOST_ERRNO = 4095, REGISTERS = 36, SLICE_NS = 100000 };
#define PROCMAP_QUERY 0xC0686611ul

/* collectors/native/sampling_loop_bindings.py has the same structures and numbers. */
enum ending { TAKEN, HELD, PENDING, REFUSED, LOST };

struct mapping {
	u64 start, end, offset, inode, major, minor;
};

struct machine {
	u64 registers_size;
	s64 sp, pc, call, result; /* words; call: -1 where they do not say in which system call a thread is */
	u64 call_code, call_size; /* the instruction */
	u64 zone, slack, least;   /* bytes of a copy: below sp, above the highest word that is needed, of all */
	u64 bound_ns;             /* so long a thread is waited for */
	u64 window_ns;            /* of a thread's share of a processor */
	double whole;             /* from which on it is all */
};

struct process {
	s64 maps; /* -1: the mapping of the code is not asked for */
	u64 mappings, mappings_count; /* struct mapping, ascending */
	s64 folder, size_file;        /* of /proc/PID and its statm, -1: not looked at */
	u64 threads, size;            /* as they were: links of the folder of threads, pages that are no data */
};

struct thread {
	s64 tid, schedstat, syscall, sched; /* descriptors of its files */
	u64 process, frames; /* their addresses; frames 0: none are read */
	u64 frames_size; /* room for them */
	u64 slept_size; /* of its schedstat in the sleep in which it was seen last, 0: it is not known to sleep */
	u8 slept[64];
	u64 start, end, top, most, last_sp; /* of its stack */
	u64 share_ran, share_waited; /* collectors/ptrace/sampled_thread.py */
	double share, credit;
	/* of all looks */
	u64 still, asked, waiting, ran_ns, waits, shared; /* shared: samples by its share */
};

struct sample {
	u64 check, due; /* which */
	s64 ending, error, status;
	u64 whole; /* all was read as wanted */
	u64 at_ns, since_ns, resumed_ns;
	u64 base, size;
	u64 frames, frames_end; /* addresses of what was read of them, and behind it: 0 if nothing was */
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

/* Is the code at pc mapped as it was? */
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

/* Was the thread in user mode, and is not about to enter a system call again? */
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

/* Of the copy from base on. */
static u64 copy_size(const struct machine *machine, const struct thread *thread, u64 base)
{
	if (!thread->top)
		return thread->end - base;
	u64 end = thread->top + machine->slack, least = base + machine->least;
	end = end < least ? least : end;
	return (end < thread->end ? end : thread->end) - base;
}

/* Registers, stack, mapping, frames. False where something is not as usual. into, limit: room for the stack. */
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
 * All that a stop does, of a thread that is not traced: the kernel answers ESRCH. Caches and page tables are warm then. Nobody
 * is asked whether it has stopped: of a child of ours that would be collected.
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

/* Sees that a thread stops. 0: it has not in time. */
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
