/* SPDX-License-Identifier: MIT */
/*
 * Reading of an interpreter's frames while a thread is stopped: first, in one system call, what the thread's last sample
 * needed, then further frames to which its chain leads. Python reads the same in the same order
 * (interpreters/cpython/frame_copier.py), and decodes it when the thread runs again. If the chain is not as planned, or
 * leads to a new code object, the thread is left to Python.
 */
enum { MOST_CHUNKS = 64, MOST_EXTRAS = 64, CHUNK_HEAD = 24, MOST_NS = 500000, LOOKS = 64 };

/* A range of the target's memory. */
struct span {
	u64 at, size;
};

/* A range of the target's memory, and the offset of its copy in the data that was read. */
struct placed {
	u64 at, size, offset;
};

/*
 * The plan for reading a thread's interpreter frames; collectors/native/sampling_loop_bindings.py has the same structure.
 * Signed fields are byte offsets in the thread state, which is the first span; -1: there is no such field.
 */
struct frames {
	u64 spans, spans_count, size;
	s64 thread_id, interp, frame, chunk, cframe, base_frame;
	u64 ident, interpreter;
	u64 by_cframe; /* 1 if the innermost CFrame points to the first frame */
	u64 root_cframe, cframe_size;
	s64 cframe_current, cframe_previous;
	u64 previous, code, code_mask, frame_size, most;
	u64 chunks, chunks_count; /* chunks of the data stack: struct placed, newest first */
	u64 room; /* bytes above the top of the data stack that belong to the copy of the newest chunk */
	u64 loose, loose_count; /* frames outside of the data stack: struct placed */
	u64 codes, codes_count; /* addresses of known code objects, ascending */
};

/* The ranges that were read in addition to the plan's spans. */
struct extras {
	u64 count;
	struct placed spans[MOST_EXTRAS];
};

/* An address range of the target whose copy is at the local address `bytes`. */
struct region {
	u64 low, high, bytes;
};

/* The state of the reading in one stop. */
struct reading {
	const struct frames *frames;
	s64 tid;
	u64 data, end, limit; /* local addresses: begin and end of the read data, end of the buffer */
	struct extras *extras;
	struct region regions[MOST_CHUNKS + 1];
	u64 regions_count;
	u64 loose; /* index in frames.loose at which the search for the next frame begins */
};

static u64 word_at(u64 address)
{
	return *(const u64 *)address;
}

/* Return the local address of a copy of some bytes, which are read now if they were not read before. 0 if that fails. */
static u64 read_more(struct reading *reading, u64 at, u64 size)
{
	struct extras *extras = reading->extras;
	for (u64 n = 0; n < extras->count; n++)
		if (extras->spans[n].at == at && extras->spans[n].size >= size)
			return reading->data + extras->spans[n].offset;
	u64 rounded = (size + 7) & ~7ul, into = reading->end;
	if (extras->count >= MOST_EXTRAS || into + rounded > reading->limit ||
	    read_memory(reading->tid, at, rounded, into) != (s64)rounded)
		return 0;
	extras->spans[extras->count++] = (struct placed){at, rounded, into - reading->data};
	reading->end += rounded;
	return into;
}

/* Return the local address of a copy of an interpreter frame or CFrame. 0 if it cannot be read. */
static u64 find(struct reading *reading, u64 at, u64 size)
{
	const struct frames *frames = reading->frames;
	if (at & 7)
		return 0;
	for (u64 n = 0; n < reading->regions_count; n++) {
		const struct region *region = reading->regions + n;
		if (region->low <= at && region->high - region->low >= size && at <= region->high - size)
			return region->bytes + (at - region->low);
	}
	const struct placed *loose = (const struct placed *)frames->loose;
	for (u64 n = 0; n < frames->loose_count; n++) { /* most chains are in the order of the last one */
		const struct placed *next = loose + (reading->loose + n) % frames->loose_count;
		if (next->at == at && next->size >= size) {
			reading->loose = next - loose + 1;
			return reading->data + next->offset;
		}
	}
	return read_more(reading, at, size);
}

/* Find the used parts of the data stack's chunks. Returns 0 if they are not those of the plan, or longer than planned. */
static int take_chunks(struct reading *reading)
{
	const struct frames *frames = reading->frames;
	const struct placed *chunks = (const struct placed *)frames->chunks;
	u64 at = word_at(reading->data + frames->chunk), top = word_at(reading->data + frames->chunk + 8);
	for (u64 n = 0; at; n++) {
		if (n >= frames->chunks_count || n >= MOST_CHUNKS || chunks[n].at != at || chunks[n].size < CHUNK_HEAD)
			return 0;
		u64 bytes = reading->data + chunks[n].offset, size = word_at(bytes + 8) & ~7ul;
		u64 used = n ? CHUNK_HEAD + 8 * word_at(bytes + 16) : top - at;
		used = (used < CHUNK_HEAD ? CHUNK_HEAD : used > size ? size : used) & ~7ul;
		if (used > chunks[n].size)
			return 0;
		used += n ? 0 : frames->room;
		reading->regions[n] = (struct region){at, at + (used < chunks[n].size ? used : chunks[n].size), bytes};
		reading->regions_count = n + 1;
		at = word_at(bytes);
	}
	return 1;
}

/* Return whether a code object is known, so that its names need not be read in the stop. */
static int is_settled(const struct frames *frames, u64 code)
{
	const u64 *codes = (const u64 *)frames->codes;
	u64 low = 0, high = frames->codes_count;
	while (low < high) {
		u64 middle = (low + high) / 2;
		if (codes[middle] < code)
			low = middle + 1;
		else
			high = middle;
	}
	return low < frames->codes_count && codes[low] == code;
}

/* Read the frames of a chain up to `stop`. Returns 0 if Python must read them. */
static int follow(struct reading *reading, u64 frame, u64 stop)
{
	const struct frames *frames = reading->frames;
	u64 deadline = now_ns() + MOST_NS;
	for (u64 n = 0; frame && frame != stop; n++) {
		if (n % LOOKS == LOOKS - 1 && now_ns() > deadline)
			return 0;
		u64 bytes = n < frames->most ? find(reading, frame, frames->frame_size) : 0;
		if (!bytes)
			return 0;
		if (!is_settled(frames, word_at(bytes + frames->code) & frames->code_mask))
			return 0; /* its name is to be read at once */
		frame = word_at(bytes + frames->previous);
	}
	return 1;
}

/* Read the CFrames on the C stack, and the frames to which the two innermost ones point. Returns 0 if that needs Python. */
static int take_stands(struct reading *reading, u64 cframe, u64 *named)
{
	const struct frames *frames = reading->frames;
	for (u64 n = 0; cframe && cframe != frames->root_cframe; n++) {
		u64 bytes = n < frames->most ? find(reading, cframe, frames->cframe_size) : 0;
		if (!bytes)
			return 0;
		if (n < 2 && frames->by_cframe)
			named[n] = word_at(bytes + frames->cframe_current);
		cframe = word_at(bytes + frames->cframe_previous);
	}
	return 1;
}

/* Read the interpreter frames of a stopped thread by its plan. Returns 0 if Python must read them. */
static int read_frames(struct reading *reading, u64 stack, u64 stack_size, u64 stack_bytes)
{
	const struct frames *frames = reading->frames;
	struct iovec here = {reading->data, frames->size};
	reading->end = reading->data + frames->size;
	reading->extras = (struct extras *)reading->end;
	reading->end += sizeof(struct extras);
	if (reading->end > reading->limit)
		return 0;
	reading->extras->count = reading->regions_count = reading->loose = 0;
	if (call6(PROCESS_VM_READV, reading->tid, (u64)&here, 1, frames->spans, frames->spans_count, 0) != (s64)frames->size)
		return 0;
	u64 head = reading->data;
	if (word_at(head + frames->thread_id) != frames->ident || word_at(head + frames->interp) != frames->interpreter)
		return 0;
	if (frames->chunk >= 0 && !take_chunks(reading))
		return 0;
	reading->regions[reading->regions_count++] = (struct region){stack, stack + (stack_size & ~7ul), stack_bytes};
	u64 named[2] = {frames->by_cframe ? 0 : word_at(head + frames->frame), 0};
	if (frames->cframe >= 0 && !take_stands(reading, word_at(head + frames->cframe), named))
		return 0;
	u64 stop = frames->base_frame >= 0 ? word_at(head + frames->base_frame) : 0;
	if (!follow(reading, named[0], stop))
		return 0;
	if (named[1]) /* the innermost CFrame may not yet say which frame it runs */
		follow(reading, named[1], stop);
	return 1;
}
