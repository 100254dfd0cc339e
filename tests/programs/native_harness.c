/* The code of collectors/native with its inner functions open to tests, and the layout of its structures. */
#include "../../collectors/native/rounds.c"

#define OPEN __attribute__((visibility("default")))
#define OFFSET(structure, field) __builtin_offsetof(struct structure, field)

OPEN const u64 sizes[] = {
	sizeof(struct machine), sizeof(struct process), sizeof(struct thread), sizeof(struct sample), sizeof(struct frames),
	sizeof(struct rounds), sizeof(struct extras), sizeof(struct placed), sizeof(struct due), sizeof(struct mapping),
};
OPEN const u64 offsets[] = {
	OFFSET(machine, bound_ns), OFFSET(machine, whole), OFFSET(process, size), OFFSET(thread, slept), OFFSET(thread, top),
	OFFSET(thread, credit), OFFSET(thread, shared), OFFSET(sample, whole), OFFSET(sample, frames_end),
	OFFSET(sample, registers), OFFSET(frames, base_frame), OFFSET(frames, cframe_previous), OFFSET(frames, most),
	OFFSET(frames, codes_count), OFFSET(rounds, check), OFFSET(rounds, own_sched), OFFSET(rounds, why),
	OFFSET(rounds, own_began_ns),
};
OPEN const u64 endings[] = {TAKEN, HELD, PENDING, REFUSED, LOST};
OPEN const u64 reasons[] = {DONE, STOPPED, ASK, CHANGED, FULL};
OPEN const u64 looks[] = {SLEEPS, WAITS, RUNS, UNSURE};

OPEN s64 share_of(const struct machine *machine, struct thread *thread, u64 ran, u64 waited, u64 arrivals)
{
	return by_share(machine, thread, ran, waited, arrivals);
}

/* Of a process that does not change meanwhile: what is read ends at *end. */
OPEN s64 frames_of(const struct frames *frames, s64 tid, u64 data, u64 limit, u64 stack, u64 stack_size, u64 stack_bytes,
		   u64 *end)
{
	struct reading reading = {.frames = frames, .tid = tid, .data = data, .limit = limit};
	s64 whole = read_frames(&reading, stack, stack_size, stack_bytes);
	*end = reading.end;
	return whole;
}

OPEN u64 turn_of(const char *sched)
{
	return turn_ns(sched);
}
