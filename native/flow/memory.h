/* SPDX-License-Identifier: MIT */
/* The instructions of a function that the analysis has visited, and the paths that it has still to follow. */
#ifndef MEMORY_H
#define MEMORY_H

#include "flow.h"

/* Flags of a visited instruction. */
enum {
    ENDS = 1,     /* control does not continue after the instruction */
    LEAVES = 2,   /* it returns or jumps to another function, and rsp is at the right depth for that */
    CALLS = 4,    /* it is a call, which may not return */
    RESETS = 8,   /* it sets rsp from rbp */
    RETURNS = 16, /* the called function returns */
    ANSWERED = 32, /* it is known whether the called function returns */
};

/* An instruction and the index of the state before it. Offsets are relative to the begin of the code. */
struct visited {
    uint32_t at, state;
    int32_t call;   /* the call on the path to it that is most likely not to return, or NO_CALL */
    int32_t target; /* offset to which it jumps, or NO_TARGET */
    int16_t table;  /* index of its jump table, or NO_TABLE */
    uint8_t size, flags;
};

enum { NO_TARGET = -1, NO_TABLE = -1 };

/* The beginning of a path to follow: an offset of the code, the state there, and visited.call. */
struct path {
    uint32_t at, state;
    int32_t call;
};

/* The table of an indirect jump: `count` entries of `size` bytes, which are added to `origin`. */
struct jump_table {
    const uint8_t *bytes;
    uint64_t origin, count, size;
};

enum { FILTER = 1 << 12 };

/* All data of the analysis of one function. */
struct memory {
    uint64_t filter[FILTER]; /* one bit for each offset modulo 64 * FILTER, set if an instruction was visited there */
    uint32_t hash[1 << HASH_BITS]; /* index in `visited` plus one, by offset */
    struct visited visited[MAX_INSTRUCTIONS], kept[MAX_INSTRUCTIONS];
    struct state states[MAX_STATES];
    struct path waiting[MAX_STEPS];
    struct jump_table tables[MAX_TABLES];
    uint64_t order[MAX_INSTRUCTIONS], spare[MAX_INSTRUCTIONS]; /* offset << 32 | index in `visited`, ascending */
    uint32_t edges[MAX_EDGES], first_edge[MAX_INSTRUCTIONS + 1], queue[MAX_INSTRUCTIONS];
    uint8_t found[MAX_INSTRUCTIONS];
    uint32_t unresolved[MAX_UNRESOLVED];
    int32_t no_return[MAX_TRIALS];
    struct run runs[MAX_INSTRUCTIONS];
    uint64_t asked[MAX_ASKED];
    uint8_t answers[MAX_ASKED];

    uint32_t visited_count, state_count, waiting_count, table_count, unresolved_count, no_return_count;
    uint32_t returns, steps, work;
    uint8_t open_tables, used_open_table, system_call, joined, sure, exceeded, refused;
    int32_t blamed; /* the call because of which the code was refused, or NO_CALL */
    int64_t start, limit;
};

static inline uint32_t hash_of(uint32_t at)
{
    return at * 0x9E3779B1u >> (32 - HASH_BITS);
}

static inline int may_start(const struct memory *memory, uint64_t at)
{
    return memory->filter[at >> 6 & (FILTER - 1)] >> (at & 63) & 1;
}

/* Return the index of the instruction that begins at an offset, or NONE. */
static inline int find_start(const struct flow *flow, int64_t at)
{
    const struct memory *memory = flow->memory;

    if (at < 0 || (uint64_t)at >= flow->size || !may_start(memory, (uint64_t)at))
        return NONE;
    for (uint32_t slot = hash_of((uint32_t)at);; slot = (slot + 1) & ((1 << HASH_BITS) - 1)) {
        uint32_t index = memory->hash[slot];
        if (!index)
            return NONE;
        if (memory->visited[index - 1].at == (uint32_t)at)
            return (int)index - 1;
    }
}

/* Return whether an instruction is known to begin in [at, end). */
static inline int has_start_in(const struct flow *flow, int64_t at, int64_t end)
{
    while (at < end && find_start(flow, at) == NONE)
        at++;
    return at < end;
}

/* Return the index of the instruction that covers an offset, or NONE. */
static inline int find_covering(const struct flow *flow, int64_t at)
{
    for (int64_t start = at; start > at - LONGEST && start >= 0; start--) {
        int index = find_start(flow, start);
        if (index != NONE)
            return at < start + flow->memory->visited[index].size ? index : NONE;
    }
    return NONE;
}

/* Add an instruction, or replace the one that begins there. The caller has checked that there is room. */
static inline void put_visited(struct flow *flow, const struct visited *found)
{
    struct memory *memory = flow->memory;
    int index = find_start(flow, found->at);
    uint32_t slot = hash_of(found->at);

    if (index != NONE) {
        memory->visited[index] = *found;
        return;
    }
    while (memory->hash[slot])
        slot = (slot + 1) & ((1 << HASH_BITS) - 1);
    memory->visited[memory->visited_count++] = *found;
    memory->hash[slot] = memory->visited_count;
    memory->filter[found->at >> 6 & (FILTER - 1)] |= (uint64_t)1 << (found->at & 63);
}

/* Remove the last instructions until `count` are left. In this order no search of the hash passes a removed entry. */
static inline void remove_visited(struct memory *memory, uint32_t count)
{
    while (memory->visited_count > count) {
        uint32_t slot = hash_of(memory->visited[memory->visited_count - 1].at);
        while (memory->hash[slot] != memory->visited_count)
            slot = (slot + 1) & ((1 << HASH_BITS) - 1);
        memory->hash[slot] = 0;
        memory->visited_count--;
    }
    for (uint32_t n = 0; n < FILTER; n++)
        memory->filter[n] = 0;
    for (uint32_t n = 0; n < count; n++) {
        uint32_t at = memory->visited[n].at;
        memory->filter[at >> 6 & (FILTER - 1)] |= (uint64_t)1 << (at & 63);
    }
}

/* Add steps to the work of the analysis. Returns 0 if the limit is exceeded. */
static inline int spend(struct memory *memory, uint32_t steps)
{
    memory->steps += steps;
    memory->work += steps;
    if (memory->steps > MAX_STEPS || memory->work > MAX_WORK)
        memory->exceeded = 1;
    return !memory->exceeded;
}

/* Add a state and return its index. */
static inline uint32_t put_state(struct memory *memory, const struct state *state)
{
    if (!spend(memory, STATE_STEPS) || memory->state_count >= MAX_STATES)
        return 0;
    memory->states[memory->state_count] = *state;
    return memory->state_count++;
}

/* Return `visited` in order of offsets, sorted by merging, as offset << 32 | index. */
static inline const uint64_t *order_visited(struct memory *memory)
{
    uint64_t *from = memory->order, *to = memory->spare, *swap, count = memory->visited_count;

    for (uint64_t at = 0; at < count; at++)
        from[at] = (uint64_t)memory->visited[at].at << 32 | at;
    for (uint64_t width = 1; width < count; width *= 2) {
        for (uint64_t low = 0; low < count; low += 2 * width) {
            uint64_t middle = low + width < count ? low + width : count;
            uint64_t high = low + 2 * width < count ? low + 2 * width : count;
            uint64_t one = low, two = middle;

            for (uint64_t at = low; at < high; at++)
                to[at] = two >= high || (one < middle && from[one] < from[two]) ? from[one++] : from[two++];
        }
        swap = from;
        from = to;
        to = swap;
    }
    return from;
}

#endif
