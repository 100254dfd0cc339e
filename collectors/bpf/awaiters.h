/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Part of sampler.bpf.c: coroutines of the asyncio tasks that await the task that a thread runs (CPython 3.14 and later).
 *
 * Algorithm and bounds are those of interpreters/cpython/asyncio_tasks.py. The rows follow those of the thread's own frames.
 * The address in each row is that of the frame of the running task's outermost coroutine, which they await. A flag
 * says where a task begins. Tasks are in order outwards, the coroutines of each task from the outermost one inwards.
 */
#define MOST_TASKS 32             /* maximum number of tasks that await each other */
#define MOST_COROUTINES 64        /* maximum number of coroutines of each task */
#define MOST_SLOTS_OF_SET 4096    /* maximum number of slots of a set that is searched for its only member */
#define MOST_OF_FRAME (1ull << 20) /* maximum number of bytes of a coroutine's frame */
#define TASK_BEGINS 1             /* value of the low byte of a row's flags */

/* Read the next slot of a set: a key and its hash. Empty slots have no key, and slots of deleted keys the hash -1. */
static long next_slot(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	if (index >= walk->slots)
		return 1;
	if (((index & 31) == 31 && is_over_budget(walk)) || probe_read_user(space->words, 16, (void *)(walk->table + 16 * index))) {
		walk->members = 0;
		return 1;
	}
	if (!space->words[0] || space->words[1] == ~0ull)
		return 0;
	walk->member = space->words[0];
	walk->members += 1;
	return 0;
}

/* Return the only task that awaits walk->task, or 0 if there is none or more than one. */
inline_ u64 awaiter_of(struct scratch_space *space)
{
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 awaiter = word(walk->task + layout->task_awaited_by), slots = 0;
	u8 is_set = 0;
	if (!awaiter || probe_read_user(&is_set, 1, (void *)(walk->task + layout->task_is_set)))
		return 0;
	if (!is_set)
		return awaiter;
	if (word(awaiter + layout->set_used) != 1 || probe_read_user(&slots, 8, (void *)(awaiter + layout->set_mask)) ||
	    slots >= MOST_SLOTS_OF_SET)
		return 0;
	walk->table = word(awaiter + layout->set_table);
	walk->slots = slots + 1;
	walk->members = 0;
	loop(MOST_SLOTS_OF_SET, next_slot, &space, 0);
	return walk->members == 1 ? walk->member : 0;
}

/* Return the coroutine that a suspended coroutine awaits: on top of its value stack, or one word below (3.15). */
inline_ u64 awaited(struct scratch_space *space, u64 top)
{
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 first = word(top - 8) & layout->code_mask;
	if (first && word(first + layout->object_type) == walk->kind)
		return first;
	u64 second = word(top - 16) & layout->code_mask;
	return second && word(second + layout->object_type) == walk->kind ? second : 0;
}

static long next_coroutine(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u64 *words = space->words;
	u64 at = walk->coroutine + layout->coroutine_frame;
	u32 n = walk->frames;
	if (n >= MOST_FRAMES || is_over_budget(walk) || probe_read_user(words, layout->frame_bytes & 127, (void *)at)) {
		walk->unknown = 1;
		return 1;
	}
	struct frame *row = &space->frames[n & (MOST_FRAMES - 1)];
	u64 code = words[layout->frame_code >> 3 & 15] & layout->code_mask;
	u64 top = words[layout->frame_top >> 3 & 15];
	u64 flags = index ? 0 : TASK_BEGINS;
	if (layout->frame_tlbc != NONE)
		flags |= words[layout->frame_tlbc >> 3 & 15] >> (8 * (layout->frame_tlbc & 7)) << 32;
	row->address = walk->running;
	row->code = code;
	row->instr = words[layout->frame_instr >> 3 & 15] >> (8 * (layout->frame_instr & 7));
	row->flags = flags;
	row->head = 0;
	walk->frames = n + 1;
	walk->coroutine = top > at && top < at + MOST_OF_FRAME ? awaited(space, top) : 0;
	return !walk->coroutine;
}

/* Add rows of the task that awaits the last one. If it cannot be read completely, the chain ends before it. */
static long next_awaiter(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	u32 first = walk->frames;
	space->entries[index & (MOST_ENTRIES - 1)] = walk->task;
	walk->task = awaiter_of(space);
	if (!walk->task)
		return 1;
#pragma unroll
	for (u32 n = 0; n < MOST_TASKS; n++)
		if (space->entries[n] == walk->task)
			return 1;
	walk->coroutine = word(walk->task + layout->task_coroutine);
	walk->kind = word(walk->coroutine + layout->object_type);
	walk->unknown = !walk->kind;
	if (walk->kind)
		loop(MOST_COROUTINES, next_coroutine, &space, 0);
	if (walk->unknown)
		walk->frames = first;
	return walk->unknown != 0;
}

/* Add rows of all tasks that await the one which a thread runs in one of its thread states. */
static long next_running(u32 index, void *context)
{
	struct scratch_space *space = *(struct scratch_space **)context;
	struct walk *walk = &space->walk;
	struct layout *layout = &space->layout;
	if (index >= walk->known || walk->broken)
		return 1;
	walk->task = word(walk->states[index & (MOST_STATES - 1)] + layout->running_task);
	if (!walk->task)
		return 0;
	walk->running = word(walk->task + layout->task_coroutine) + layout->coroutine_frame;
#pragma unroll
	for (u32 n = 0; n < MOST_TASKS; n++)
		space->entries[n] = 0;
	loop(MOST_TASKS, next_awaiter, &space, 0);
	return 0;
}

/* Add rows of awaiting tasks after those of the thread's own frames, if all of those were read. */
static __attribute__((noinline)) void take_awaiting(struct scratch_space *space)
{
	struct walk *walk = &space->walk;
	struct record *record = &space->record;
	u32 own = record->frames;
	if (!own || own >= MOST_FRAMES || record->flags & FLAG_BROKEN)
		return;
	walk->frames = walk->own_frames = own;
	walk->broken = 0;
	loop(MOST_STATES, next_running, &space, 0);
	loop(MOST_FRAMES, next_head, &space, 0);
	record->frames = walk->frames;
	record->awaiting = walk->frames - own;
	if (walk->broken)
		count(walk->broken);
}
