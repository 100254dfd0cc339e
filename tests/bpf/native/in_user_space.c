/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The program of the kernel as one of user space: the same source, with helpers that know what standard input says.
 *
 * In: commands, each a struct command and its data, padded to words. Out, for each SAMPLE and each LEAVE: a struct ran, and each record:
 * its flags, its size, its bytes. For each DUMP: the number of entries, and of each its key, its size, its value.
 * tests/bpf/user_space.py is the other side.
 */
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../collectors/bpf/sampler.bpf.c"
#include "helpers.h"

/* It ends when all is told. */
const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}

enum { MEMORY = 1, CONSTANT, ENTRY, SETTING, DUMP, SAMPLE, POKE, LEAVE };

struct command {
	u64 what;
	char name[24];
	u64 a, b;
	u64 size; /* of its data, in bytes */
};

#define NAMED(name) {#name, &name}
static const struct {
	const char *name;
	struct map *map;
} tables[] = {
	NAMED(processes), NAMED(threads), NAMED(code_pages), NAMED(layouts), NAMED(sent_codes),
	NAMED(limits),	  NAMED(waits),	  NAMED(counters),   NAMED(scratch),
};
static const struct {
	const char *name;
	const volatile u32 *value;
} constants[] = {
	NAMED(everything), NAMED(own_tgid),      NAMED(kernel_stacks), NAMED(locks),    NAMED(wakers),
	NAMED(fill),	   NAMED(seeks_waiting), NAMED(follow),	       NAMED(runnable), NAMED(follows_tasks),
	NAMED(overflows_per_sample),
};
static const struct {
	const char *name;
	u64 *value;
} settings[] = {
	NAMED(step), NAMED(ring_bytes), NAMED(is_locked), NAMED(kernel_frames), NAMED(namespace_pid),
	{"start_stack", &current_memory.stack}, {"code", &current_memory.code}, {"pointer", &current_task.pointer},
};

#define FIND(table, wanted)                                                                                            \
	({                                                                                                             \
		u64 at = 0;                                                                                            \
		while (at < sizeof(table) / sizeof(*(table)) && strcmp((table)[at].name, wanted))                      \
			at++;                                                                                          \
		if (at == sizeof(table) / sizeof(*(table)))                                                            \
			fail(wanted);                                                                                  \
		at;                                                                                                    \
	})

/* Constants are set before load, as in the kernel: they are in memory that is not to be written. */
static void set_constant(const volatile u32 *constant, u32 value)
{
	uintptr_t page = (uintptr_t)constant & -(uintptr_t)PAGE;
	if (mprotect((void *)page, 2 * PAGE, PROT_READ | PROT_WRITE))
		fail("constants");
	*(volatile u32 *)(uintptr_t)constant = value;
}

static void add_segment(const struct command *command, u8 *data)
{
	static u64 room;
	if (segment_count == room) {
		room = room ? 2 * room : 64;
		segments = realloc(segments, room * sizeof(*segments));
	}
	if (segment_count && segments[segment_count - 1].end > command->a)
		fail("memory is not in order");
	segments[segment_count++] = (struct segment){command->a, command->b, command->size, data};
}

/* A word of memory is another one from now on. */
static void poke(u64 address, u64 value)
{
	const struct segment *segment = segment_at(address);
	if (!segment || !inside((void *)address, 8, (void *)segment->start, segment->size))
		fail("no such memory");
	memcpy(segment->data + (address - segment->start), &value, 8);
}

static void put_out(const void *data, u64 size)
{
	static const u8 zeros[8];
	if (fwrite(data, 1, size, stdout) != size || fwrite(zeros, 1, -size & 7, stdout) != (-size & 7))
		fail("output");
}

static void dump(struct map *map)
{
	u64 count = 0;
	for (struct entry *entry = entries; entry; entry = entry->next)
		count += entry->map == map;
	put_out(&count, 8);
	for (struct entry *entry = entries; entry; entry = entry->next) {
		u64 head[2] = {entry->key, map->value_size};
		if (entry->map != map)
			continue;
		put_out(head, sizeof(head));
		put_out(entry->value, map->value_size);
	}
}

static struct pt_regs registers(const u64 *word)
{
	return (struct pt_regs){
		.rax = word[0], .rdx = word[1], .rcx = word[2], .rbx = word[3], .rsi = word[4], .rdi = word[5],
		.rbp = word[6], .rsp = word[7], .r8 = word[8], .r9 = word[9], .r10 = word[10], .r11 = word[11],
		.r12 = word[12], .r13 = word[13], .r14 = word[14], .r15 = word[15], .rip = word[16],
		.orig_rax = -1, .cs = 0x33,
	};
}

/*
 * command->a: the thread's ids. Of a SAMPLE b: is it in the kernel? Of a LEAVE: its state when it leaves its processor. data:
 * its registers in user mode, in the order of DWARF.
 */
static void run_program(const struct command *command, const u8 *data)
{
	struct bpf_perf_event_data event = {};
	struct switch_tracepoint leaving = {.before = command->a, .state = command->b};
	u64 words[REGISTERS];
	if (command->size != sizeof(words))
		fail("registers");
	memcpy(words, data, sizeof(words));
	entered = registers(words);
	if (!command->b)
		event.regs = entered;
	ids = command->a;
	begin();
	if (command->what == SAMPLE)
		sample(&event);
	else
		switched(&leaving);
	put_out(&ran, sizeof(ran));
	if (records_size)
		put_out(records, records_size);
}

static void run(const struct command *command, u8 *data)
{
	const char *name = command->name;
	switch (command->what) {
	case MEMORY:
		return add_segment(command, data);
	case CONSTANT:
		return set_constant(constants[FIND(constants, name)].value, command->a);
	case ENTRY: {
		struct map *map = tables[FIND(tables, name)].map;
		if (command->size > map->value_size)
			fail("value");
		memset(make(map, command->a)->value, 0, map->value_size);
		memcpy(make(map, command->a)->value, data, command->size);
		return;
	}
	case SETTING:
		*settings[FIND(settings, name)].value = command->a;
		return;
	case DUMP:
		return dump(tables[FIND(tables, name)].map);
	case SAMPLE:
	case LEAVE:
		return run_program(command, data);
	case POKE:
		return poke(command->a, command->b);
	default:
		fail("command");
	}
}

static u8 *read_all(u64 *size)
{
	u64 room = 1 << 20;
	u8 *data = malloc(room);
	ssize_t got;
	*size = 0;
	while ((got = read(0, data + *size, room - *size)) > 0) {
		*size += got;
		if (*size == room)
			data = realloc(data, room *= 2);
	}
	return data;
}

int main(void)
{
	u64 size;
	u8 *input = read_all(&size);
	place_helpers();
	set_constant(&memory_of_task, offsetof(struct task, memory));
	set_constant(&tgid_of_task, offsetof(struct task, tgid));
	set_constant(&pid_of_task, offsetof(struct task, pid));
	set_constant(&pointer_of_task, offsetof(struct task, pointer));
	set_constant(&code_of_memory, offsetof(struct memory, code));
	set_constant(&stack_of_memory, offsetof(struct memory, stack));
	for (u64 at = 0; at < size;) {
		struct command command;
		memcpy(&command, input + at, sizeof(command));
		run(&command, input + at + sizeof(command));
		at += sizeof(command) + ((command.size + 7) & ~7ull);
	}
	return fflush(stdout) ? 1 : 0;
}
