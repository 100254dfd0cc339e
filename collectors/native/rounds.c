/* SPDX-License-Identifier: MIT */
/*
 * Rounds of samples by ptrace stops, without Python between one stop and the next. In a round, the loop checks which
 * threads run, stops each of these for some microseconds, and copies its registers and stack. It handles the usual case:
 * threads that sleep, or run in user mode on the known stack, and processes that do not change. Everything else ends the
 * call, and Python continues from there (collectors/ptrace/). Nothing is allocated, and no library is used. The caller has
 * blocked all signals.
 */
#include "calls.h"
#include "stop.h"

enum { EINTR = 4, TIMER_ABSTIME = 1, TEXT = 4096, COLD_NS = 3000000, LINKS = 4 /* STATX_NLINK */, POLLIN = 1, FIFO = 0x40000001 /* and RESET_ON_FORK */ };

/* The reason for which a call of sample_rounds() returned. */
enum why {
	DONE,
	STOPPED, /* see the ending of the last sample */
	ASK,     /* Python must check the thread */
	CHANGED, /* a process has changed */
	FULL,    /* a buffer has no room for another sample */
};

/* A sampling time. */
struct due {
	u64 at_ns, end_ns; /* time at which to sample, at random in a slot; end of the slot */
	u64 first, behind; /* range of the checks to make at that time */
};

/* Everything that Python and the loop share. Python writes it, except for the answer. */
struct rounds {
	u64 machine, threads, checks; /* checks: u64 indices of threads to check */
	u64 processes, processes_count;
	u64 dues, dues_count, due; /* index of the next sampling time, or of the one in progress */
	u64 under_way, check;      /* 1 if a round is in progress; index of its next check */
	u64 samples, samples_most, samples_count;
	u64 into, into_end; /* buffer for stack copies */
	u64 frames, frames_end; /* buffer for interpreter frames */
	s64 own_sched; /* descriptor of the sampler's /proc/.../sched; -1: threads are sampled by their share of a processor */
	s64 policy;    /* scheduling policy of the sampler to restore after a stop; -1: it is not changed */
	s64 news; /* descriptor that is readable when a process has started, or -1 */
	u64 stopping; /* address of a byte that is not 0 when sampling must end */
	u64 rest_ns, last_stop_ns;
	/* Slots of the sampling times: their length, their delay when the times were drawn, their delay now. */
	u64 slot_ns, first_shift_ns, shift_ns;
	/* the answer */
	u64 why, rounds;
	u64 own_is_read, own_is_wanted, own_began_ns;
};

struct statx {
	u32 mask, block_size;
	u64 attributes;
	u32 links;
	u32 rest[59];
};

/* Read the text of an open file from its beginning. Returns the number of bytes, negative on an error. */
static s64 read_text(s64 file, char *text, u64 most)
{
	return file < 0 ? -1 : call4(PREAD64, file, (u64)text, most, 0);
}

/* Return the next decimal number of a text, and move `at` after it. */
static u64 number(const char **at)
{
	const char *p = *at;
	while (*p && (*p < '0' || *p > '9'))
		p++;
	u64 value = 0;
	while (*p >= '0' && *p <= '9')
		value = 10 * value + (*p++ - '0');
	*at = p;
	return value;
}

/* Return the address after a word at the beginning of a line, or 0 if there is none. */
static const char *behind(const char *text, const char *word)
{
	for (const char *p = text; *p; p++) {
		u64 n = 0;
		while (word[n] && p[n] == word[n])
			n++;
		if (!word[n] && (p == text || p[-1] == '\n'))
			return p + n;
	}
	return 0;
}

/* Return when a thread last got or left a processor, in ns, from its sched file, which has ms with a point. */
static u64 turn_ns(const char *sched)
{
	const char *at = behind(sched, "se.exec_start");
	if (!at)
		return 0;
	u64 whole = number(&at);
	return *at == '.' ? 1000000 * whole + number(&at) : 0;
}

/* Return whether a process has the same number of threads and the same size of mapped memory as before. */
static int is_same(const struct process *process)
{
	char text[256];
	struct statx status;
	if (process->folder < 0)
		return 1;
	if (call6(STATX, process->folder, (u64)"task", 0, LINKS, (u64)&status, 0) || status.links != process->threads)
		return 0;
	if (process->size_file < 0)
		return 1;
	s64 got = read_text(process->size_file, text, sizeof(text) - 1);
	if (got <= 0)
		return 0;
	text[got] = 0;
	const char *at = text;
	u64 fields[6];
	for (u64 n = 0; n < 6; n++)
		fields[n] = number(&at);
	return fields[0] - fields[5] == process->size;
}

/* The result of checking a thread: it sleeps, waits for a processor, or runs. UNSURE: Python must check it. */
enum look { SLEEPS, WAITS, RUNS, UNSURE };

/* Decide by a runnable thread's share of a processor whether it is sampled: the same as ProcessorShare.is_due(). */
static enum look by_share(const struct machine *machine, struct thread *thread, u64 ran, u64 waited, u64 arrivals)
{
	if (!arrivals)
		return WAITS;
	if (thread->share < 0)
		return UNSURE;
	u64 more = ran - thread->share_ran, idle = waited - thread->share_waited;
	if (more + idle >= machine->window_ns) {
		double share = (double)more / (double)(more + idle);
		thread->share = share < machine->whole ? share : 1;
		thread->share_ran = ran;
		thread->share_waited = waited;
	}
	thread->credit += thread->share;
	thread->still = 0;
	thread->asked++;
	if (thread->credit < 1)
		return WAITS;
	thread->credit -= 1;
	thread->shared++;
	return RUNS;
}

/* Read when the sampler got its processor. Ticks of the kernel's timer change it: it is read at once if needed lately. */
static void read_own(struct rounds *rounds)
{
	char own[TEXT];
	s64 got = read_text(rounds->own_sched, own, TEXT - 1);
	own[got < 0 ? 0 : got] = 0;
	rounds->own_began_ns = turn_ns(own);
	rounds->own_is_read = 1;
}

/* Check whether a thread runs. */
static enum look look_at(struct rounds *rounds, struct thread *thread)
{
	char text[TEXT];
	s64 got = read_text(thread->schedstat, text, 63);
	if (got <= 0)
		return UNSURE;
	text[got] = 0;
	if (thread->slept_size == (u64)got) {
		u64 n = 0;
		while (n < (u64)got && text[n] == (char)thread->slept[n])
			n++;
		if (n == (u64)got) {
			thread->still++;
			return SLEEPS;
		}
	}
	const char *at = text;
	u64 ran_ns = number(&at), waited_ns = number(&at), arrivals = number(&at);
	got = read_text(thread->syscall, text, 63);
	if (got < 7 || text[0] != 'r') /* running */
		return UNSURE;
	if (rounds->own_sched < 0)
		return by_share((const struct machine *)rounds->machine, thread, ran_ns, waited_ns, arrivals);
	got = read_text(thread->sched, text, TEXT - 1);
	if (got <= 0)
		return UNSURE;
	text[got] = 0;
	const char *switches = behind(text, "nr_switches");
	const char *waits = switches ? behind(switches, "nr_voluntary_switches") : 0;
	if (!waits)
		return UNSURE;
	thread->asked++;
	thread->ran_ns = ran_ns;
	thread->waits = number(&waits);
	u64 departures = number(&switches);
	if (arrivals - departures == 1)
		return RUNS;
	u64 left_ns = turn_ns(text);
	if (!left_ns)
		return UNSURE;
	rounds->own_is_wanted = 1;
	if (!rounds->own_is_read)
		read_own(rounds);
	if (!rounds->own_began_ns)
		return UNSURE;
	if (left_ns == rounds->own_began_ns) /* we have displaced it */
		return RUNS;
	got = read_text(thread->schedstat, text, 63);
	if (got <= 0)
		return UNSURE;
	text[got] = 0;
	at = text;
	number(&at);
	number(&at);
	if (number(&at) != arrivals)
		return UNSURE;
	thread->waiting++;
	return WAITS;
}

/*
 * Sleep until the next sampling time. Returns 0 if there is none. If its slot has already begun, this slot and all later
 * ones are delayed so that it begins now: the same as SamplingClock._move_grid().
 */
static int sleep_until_due(struct rounds *rounds)
{
	const struct due *dues = (const struct due *)rounds->dues;
	u64 now = now_ns() + rounds->rest_ns;
	if (rounds->due >= rounds->dues_count)
		return 0;
	u64 begin = dues[rounds->due].end_ns - rounds->slot_ns + rounds->shift_ns - rounds->first_shift_ns;
	if (now > begin) {
		u64 moved = rounds->shift_ns + now - begin;
		rounds->due += moved / rounds->slot_ns;
		rounds->shift_ns = moved % rounds->slot_ns;
	}
	if (rounds->due >= rounds->dues_count)
		return 0;
	u64 due = dues[rounds->due].at_ns + rounds->shift_ns - rounds->first_shift_ns;
	struct timespec at = {due / 1000000000ul, due % 1000000000ul};
	while (call4(CLOCK_NANOSLEEP, CLOCK_MONOTONIC, TIMER_ABSTIME, (u64)&at, 0) == -EINTR)
		;
	return 1;
}

/* Return whether a process has started. */
static int has_news(struct rounds *rounds)
{
	struct {
		s32 file;
		u16 events, found;
	} wanted = {rounds->news, POLLIN, 0};
	struct timespec none = {0, 0};
	return rounds->news >= 0 && call6(PPOLL, (u64)&wanted, 1, (u64)&none, 0, 8, 0) != 0;
}

/* Return whether the buffers have room for a sample of a thread. */
static int has_room(const struct rounds *rounds, const struct thread *thread)
{
	return rounds->samples_count < rounds->samples_most && rounds->into + thread->most + 8 <= rounds->into_end &&
	       rounds->frames + thread->frames_size <= rounds->frames_end;
}

/* Stop and sample a thread that runs. Returns 0 if Python must continue. */
static int take(struct rounds *rounds, struct thread *thread)
{
	struct sample *sample = (struct sample *)rounds->samples + rounds->samples_count;
	struct reading reading;
	reading.data = rounds->frames;
	reading.limit = rounds->frames + thread->frames_size;
	sample->check = rounds->check;
	sample->due = rounds->due;
	sample->error = sample->status = sample->whole = sample->size = sample->frames = 0;
	u32 first = 1, usual = 0;
	if (rounds->policy >= 0)
		call3(SCHED_SETSCHEDULER, 0, FIFO, (u64)&first);
	if (now_ns() - rounds->last_stop_ns > COLD_NS)
		rehearse((const struct machine *)rounds->machine, thread, sample, rounds->into, &reading);
	stop((const struct machine *)rounds->machine, thread, sample, rounds->into, &reading);
	if (rounds->policy >= 0 && sample->ending != HELD && sample->ending != PENDING)
		call3(SCHED_SETSCHEDULER, 0, rounds->policy, (u64)&usual);
	rounds->samples_count++;
	if (sample->ending != TAKEN) {
		rounds->why = STOPPED;
		return 0;
	}
	rounds->last_stop_ns = sample->resumed_ns;
	thread->last_sp = sample->registers[((const struct machine *)rounds->machine)->sp];
	rounds->into += (sample->size + 7) & ~7ul;
	if (sample->frames)
		rounds->frames = sample->frames_end;
	return 1;
}

/* Make the checks of a round, and sample the threads that run. Returns 0 if Python must continue. */
static int look_at_all(struct rounds *rounds)
{
	const u64 *checks = (const u64 *)rounds->checks;
	u64 behind = ((const struct due *)rounds->dues)[rounds->due].behind;
	for (; rounds->check < behind; rounds->check++) {
		struct thread *thread = (struct thread *)rounds->threads + checks[rounds->check];
		rounds->why = FULL;
		if (thread->syscall >= 0 && !has_room(rounds, thread))
			return 0;
		enum look look = look_at(rounds, thread);
		rounds->why = ASK;
		if (look == UNSURE || (look == RUNS && !take(rounds, thread)))
			return 0;
	}
	return 1;
}

/* Make rounds until Python must continue or there are no more sampling times. A round in progress is continued. */
__attribute__((visibility("default"))) void sample_rounds(struct rounds *rounds)
{
	for (;;) {
		if (!rounds->under_way) {
			rounds->why = DONE;
			if (*(const volatile u8 *)rounds->stopping || !sleep_until_due(rounds))
				return;
			rounds->under_way = 1;
			rounds->check = ((const struct due *)rounds->dues)[rounds->due].first;
			rounds->own_is_read = 0;
			if (rounds->own_is_wanted)
				read_own(rounds);
			rounds->own_is_wanted = 0;
			rounds->why = CHANGED;
			const struct process *processes = (const struct process *)rounds->processes;
			for (u64 n = 0; n < rounds->processes_count; n++)
				if (!is_same(processes + n))
					return;
			if (has_news(rounds))
				return;
		}
		if (!look_at_all(rounds))
			return;
		rounds->under_way = 0;
		rounds->rounds++;
		rounds->due++;
	}
}
