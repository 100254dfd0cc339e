/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A thread's memory and what the kernel knows of it, and a clock that stands still but for calls of helpers: a step each. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of one sample. */
struct ran {
	u64 calls;   /* of helpers */
	u64 turns;   /* of loops */
	u64 late;    /* both, after its time was over */
	u64 records; /* that it left in the ring */
};

/* A mapping: what of it can be read is the first size bytes. */
struct segment {
	u64 start, end, size;
	u8 *data;
};

static struct ran ran;
static u64 now, deadline, step = 1;
static struct segment *segments;
static u64 segment_count, is_locked;
static const u8 *scratch_start;
/* Of the thread that runs. */
static struct memory {
	u64 code, stack;
} current_memory;
static struct task {
	u64 pid, tgid, pointer;
	struct memory *memory;
} current_task = {.memory = &current_memory};
static struct pt_regs entered;

static void fail(const char *why)
{
	fprintf(stderr, "%s\n", why);
	abort();
}

static void called(void)
{
	now += step;
	ran.calls += 1;
	ran.late += now > deadline;
}

static const struct segment *segment_at(u64 address)
{
	u64 low = 0, high = segment_count;
	while (low < high) {
		u64 middle = (low + high) / 2;
		if (segments[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low < segment_count && segments[low].start <= address ? &segments[low] : 0;
}

/* Is it inside one part of the scratch space, or outside of that? ASan sees all other bounds. */
static void check_part(const u8 *to, u64 size)
{
#define PART(name) {offsetof(struct scratch_space, name), sizeof(((struct scratch_space *)0)->name), 0}
	static const struct {
		u64 at, size, row;
	} parts[] = {
		PART(walk), PART(record), PART(frames), PART(anchors), PART(entries), PART(naming), PART(kernel), PART(words),
		PART(window), PART(layout), PART(signal), PART(user), PART(ended), PART(fresh), PART(page),
		{offsetof(struct scratch_space, texts), sizeof(((struct scratch_space *)0)->texts), sizeof(struct text)},
	};
	u64 into = to - scratch_start;
	if (into >= sizeof(struct scratch_space))
		return;
	for (u64 n = 0; n < sizeof(parts) / sizeof(*parts); n++) {
		u64 inside = into - parts[n].at, whole = parts[n].row ? parts[n].row : parts[n].size;
		if (inside < parts[n].size && (parts[n].row ? inside % whole : inside) + size <= whole)
			return;
	}
	fail("beyond a part of the scratch space");
}

/* copy_from_user_nofault(): all of it, or zeros. */
static long read_user(void *to, u32 size, const void *from)
{
	u64 at = (u64)from, left = size;
	u8 *out = to;
	called();
	check_part(to, size);
	while (left) {
		const struct segment *segment = segment_at(at);
		u64 into = segment ? at - segment->start : 0;
		if (!segment || into >= segment->size) {
			memset(to, 0, size);
			return -EFAULT;
		}
		u64 part = segment->size - into < left ? segment->size - into : left;
		memcpy(out, segment->data + into, part);
		out += part;
		at += part;
		left -= part;
	}
	return 0;
}

static int inside(const void *from, u64 size, const void *object, u64 whole)
{
	u64 into = (u64)from - (u64)object;
	return into <= whole && size <= whole - into;
}

static long read_kernel(void *to, u32 size, const void *from)
{
	called();
	check_part(to, size);
	if (!inside(from, size, &current_task, sizeof(current_task)) &&
	    !inside(from, size, &current_memory, sizeof(current_memory)) && !inside(from, size, &entered, sizeof(entered))) {
		memset(to, 0, size);
		return -EFAULT;
	}
	memcpy(to, from, size);
	return 0;
}

static long vma_of(void *task, u64 address, void *callback, void *context, u64 flags)
{
	const struct segment *segment = segment_at(address);
	called();
	if (is_locked || !segment)
		return is_locked ? -EBUSY : -ENOENT;
	struct vm_area_struct vma = {segment->start, segment->end};
	((long (*)(void *, struct vm_area_struct *, void *))callback)(task, &vma, context);
	return 0;
}
