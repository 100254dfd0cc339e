/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The kernel's helpers for the program in user space: maps and a ring of its own. */
#include "memory.h"

struct entry {
	struct entry *next;
	struct map *map;
	u64 key;
	void *value;
};

/* As struct bpf_dynptr is not seen by a program: room in the ring. */
struct room {
	u8 *data;
	u64 size;
};

static struct entry *entries;
static u8 *records;
static u64 records_size;
static u64 ids, namespace_pid, kernel_frames, ring_bytes = 1 << 26;

/* ---- maps ---- */

static struct entry *find(struct map *map, u64 key)
{
	for (struct entry *entry = entries; entry; entry = entry->next)
		if (entry->map == map && entry->key == key)
			return entry;
	return 0;
}

static struct entry *make(struct map *map, u64 key)
{
	struct entry *entry = find(map, key);
	if (!entry) {
		entry = malloc(sizeof(*entry));
		*entry = (struct entry){entries, map, key, calloc(1, map->value_size)};
		entries = entry;
	}
	return entry;
}

static u64 key_of(struct map *map, const void *key)
{
	u64 words[2] = {};
	memcpy(words, key, map->key_size);
	return words[0] ^ words[1] << 48;
}

static void *lookup(void *map, const void *key)
{
	struct map *of = map;
	u64 wanted = key_of(of, key);
	called();
	if (of->type == ARRAY || of->type == PERCPU_ARRAY)
		return wanted < of->max_entries ? make(of, wanted)->value : 0;
	struct entry *entry = find(of, wanted);
	return entry ? entry->value : 0;
}

static long update(void *map, const void *key, const void *value, u64 flags)
{
	struct map *of = map;
	called();
	memmove(make(of, key_of(of, key))->value, value, of->value_size);
	return 0;
}

static long forget(void *map, const void *key)
{
	struct entry *entry = find(map, key_of(map, key));
	called();
	if (!entry)
		return -ENOENT;
	entry->map = 0; /* who has its value may go on with it */
	return 0;
}

/* ---- the ring ---- */

static void append(u64 flags, const void *data, u64 size)
{
	u64 padded = (size + 7) & ~7ull;
	records = realloc(records, records_size + 16 + padded);
	u8 *end = records + records_size;
	memcpy(end, &flags, 8);
	memcpy(end + 8, &size, 8);
	memset(end + 16, 0, padded);
	memcpy(end + 16, data, size);
	records_size += 16 + padded;
	ran.records += 1;
}

static u64 query(void *map, u64 what)
{
	called();
	return records_size;
}

static long reserve_room(void *map, u32 size, u64 flags, void *pointer)
{
	struct room *room = pointer;
	called();
	*room = (struct room){};
	if (records_size + size > ring_bytes)
		return -EINVAL;
	*room = (struct room){malloc(size), size};
	memset(room->data, 0xAA, size); /* a ring has what was in it before */
	return 0;
}

static void give_back(void *pointer, u64 flags)
{
	struct room *room = pointer;
	called();
	free(room->data);
	*room = (struct room){};
}

static void submit(void *pointer, u64 flags)
{
	struct room *room = pointer;
	append(flags, room->data, room->size);
	give_back(pointer, flags);
}

static long write_room(void *pointer, u32 at, void *from, u32 size, u64 flags)
{
	struct room *room = pointer;
	called();
	if (at > room->size || size > room->size - at)
		return -E2BIG;
	memcpy(room->data + at, from, size);
	return 0;
}

static void *part_of_room(void *pointer, u32 at, u32 size)
{
	struct room *room = pointer;
	called();
	return at > room->size || size > room->size - at ? 0 : room->data + at;
}

static long output(void *map, void *data, u64 size, u64 flags)
{
	called();
	append(flags, data, size);
	return 0;
}

/* Of records that hold nothing, which only wake their reader. */
static void *reserve(void *map, u64 size, u64 flags)
{
	called();
	return calloc(1, size);
}

static void discard(void *data, u64 flags)
{
	called();
	free(data);
}

/* ---- all others ---- */

static u64 clock_ns(void)
{
	called();
	return now;
}

static u32 processor(void)
{
	called();
	return 0;
}

static u32 random_word(void)
{
	static u64 state = 1; /* Knuth's MMIX generator */
	called();
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return state >> 32;
}

static u64 thread_ids(void)
{
	called();
	return ids;
}

static long comm(void *to, u32 size)
{
	called();
	memset(to, 0, size);
	return 0;
}

static long frames_of_kernel(void *context, void *to, u32 size, u64 flags)
{
	u64 *frames = to;
	called();
	u64 most = kernel_frames < size / 8 ? kernel_frames : size / 8;
	for (u64 n = 0; n < most; n++)
		frames[n] = 0xffffffff81000000ull + n;
	return most * 8;
}

static long ids_in_namespace(u64 dev, u64 ino, void *to, u32 size)
{
	called();
	*(struct namespaced *)to = (struct namespaced){namespace_pid, ids >> 32};
	return 0;
}

static void *task_of_now(void)
{
	called();
	return &current_task;
}

static void *registers_of(void *task)
{
	called();
	return &entered;
}

static long turns(u32 times, void *callback, void *context, u64 flags)
{
	called();
	for (u32 n = 0; n < times; n++) {
		ran.turns += 1;
		ran.late += now > deadline;
		if (((long (*)(u32, void *))callback)(n, context))
			return n + 1;
	}
	return times;
}

static void place_helpers(void)
{
	map_lookup = lookup;
	map_update = update;
	map_delete = forget;
	ktime_get_ns = clock_ns;
	get_prandom_u32 = random_word;
	get_smp_processor_id = processor;
	get_current_pid_tgid = thread_ids;
	get_current_comm = comm;
	get_stack = frames_of_kernel;
	probe_read_user = read_user;
	probe_read_kernel = read_kernel;
	get_ns_current_pid_tgid = ids_in_namespace;
	get_current_task_btf = task_of_now;
	task_pt_regs = registers_of;
	find_vma = vma_of;
	loop = turns;
	ringbuf_query = query;
	ringbuf_reserve = reserve;
	ringbuf_discard = discard;
	ringbuf_output = output;
	ringbuf_reserve_dynptr = reserve_room;
	ringbuf_submit_dynptr = submit;
	ringbuf_discard_dynptr = give_back;
	dynptr_write = write_room;
	dynptr_data = part_of_room;
}

/* Of a sample. */
static void begin(void)
{
	scratch_start = make(&scratch, 0)->value;
	free(records);
	records = 0;
	records_size = 0;
	ran = (struct ran){};
	deadline = now + step + MOST_RUN_NS;
}
