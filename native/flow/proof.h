/* SPDX-License-Identifier: MIT */
/* Proofs of the states of code after calls: keep_proved() in unwind/code_analysis/code_rules.py is the specification. */
#ifndef PROOF_H
#define PROOF_H

#include "code.h"
#include "row.h"

/* Sets of instructions, as bits of `found`. */
enum { EVIDENCE = 1, PROVED = 2, EXACT = 4 };

/* Return the number of places to which an instruction may lead, known or not. */
static inline uint64_t count_targets(const struct memory *memory, const struct visited *from)
{
    return 2 + (from->table == NO_TABLE ? 0 : memory->tables[from->table].count);
}

/* Return the index of an instruction to which another one may lead, or NONE. */
static inline int find_target(const struct flow *flow, const struct visited *from, uint64_t number)
{
    if (number == 0)
        return from->flags & ENDS ? NONE : find_covering(flow, (int64_t)from->at + from->size);
    if (number == 1)
        return from->target == NO_TARGET ? NONE : find_covering(flow, from->target);
    return find_covering(flow, table_entry(flow, &flow->memory->tables[from->table], number - 2));
}

/* Make the lists of the instructions that lead to each one. Returns 0 if there are too many. */
static inline int invert_edges(struct flow *flow)
{
    struct memory *memory = flow->memory;
    uint32_t count = memory->visited_count, *first = memory->first_edge, total = 0;

    for (uint32_t n = 0; n <= count; n++)
        first[n] = 0;
    for (uint32_t n = 0; n < count; n++)
        for (uint64_t each = 0; each < count_targets(memory, &memory->visited[n]); each++) {
            int target = find_target(flow, &memory->visited[n], each);
            if (target != NONE) {
                if (++total > MAX_EDGES)
                    return 0;
                first[target]++;
            }
        }
    for (uint32_t n = 1; n <= count; n++)
        first[n] += first[n - 1];
    for (uint32_t n = 0; n < count; n++)
        for (uint64_t each = 0; each < count_targets(memory, &memory->visited[n]); each++) {
            int target = find_target(flow, &memory->visited[n], each);
            if (target != NONE)
                memory->edges[--first[target]] = n;
        }
    return 1;
}

static inline uint32_t add_found(struct memory *memory, uint32_t index, uint8_t set, uint32_t count)
{
    if (memory->found[index] & set)
        return count;
    memory->found[index] |= set;
    memory->queue[count] = index;
    return count + 1;
}

/* Put all members of a set in the queue and return their number. */
static inline uint32_t queue_set(struct memory *memory, uint8_t set)
{
    uint32_t count = 0;

    for (uint32_t n = 0; n < memory->visited_count; n++)
        if (memory->found[n] & set)
            memory->queue[count++] = n;
    return count;
}

/* Add to a set all instructions to which its members lead. Calls are passed only if through_calls is set and they return. */
static inline void reach_forward(struct flow *flow, uint8_t set, int through_calls)
{
    struct memory *memory = flow->memory;
    uint32_t count = queue_set(memory, set);

    for (uint32_t at = 0; at < count; at++) {
        const struct visited *from = &memory->visited[memory->queue[at]];
        if (from->flags & CALLS && !(through_calls && from->flags & RETURNS))
            continue;
        for (uint64_t each = 0; each < count_targets(memory, from); each++) {
            int target = find_target(flow, from, each);
            if (target != NONE)
                count = add_found(memory, (uint32_t)target, set, count);
        }
    }
}

/* Add to a set all instructions that lead to its members. For exact states, those that set rsp from rbp are left out. */
static inline void reach_backward(struct memory *memory, uint8_t set)
{
    uint32_t count = queue_set(memory, set);

    for (uint32_t at = 0; at < count; at++) {
        uint32_t to = memory->queue[at];
        for (uint32_t edge = memory->first_edge[to]; edge < memory->first_edge[to + 1]; edge++) {
            uint32_t from = memory->edges[edge];
            if (set != EXACT || !(memory->visited[from].flags & RESETS))
                count = add_found(memory, from, set, count);
        }
    }
}

/* Collect the calls of a set that lead outside of it and whose answers are not known. Returns their number. */
static inline uint32_t collect_calls(struct flow *flow, uint8_t set)
{
    struct memory *memory = flow->memory;
    uint32_t count = 0;

    for (uint32_t n = 0; n < memory->visited_count && count < MAX_ASKED; n++) {
        struct visited *from = &memory->visited[n];
        int leaves = 0;

        if (!(memory->found[n] & set) || (from->flags & (CALLS | ANSWERED)) != CALLS)
            continue;
        for (uint64_t each = 0; each < count_targets(memory, from); each++) {
            int target = find_target(flow, from, each);
            leaves |= target != NONE && !(memory->found[target] & set);
        }
        if (leaves) {
            from->flags |= ANSWERED;
            memory->queue[count] = n;
            memory->asked[count++] = flow->base + from->at;
        }
    }
    flow->asked = memory->asked;
    flow->answers = memory->answers;
    flow->asked_count = count;
    return count;
}

/* Extend a set beyond calls that return. Returns 0 if answers from Python are needed. */
static inline int reach_beyond_calls(struct flow *flow, uint8_t set)
{
    reach_forward(flow, set, 1);
    return collect_calls(flow, set) == 0;
}

/* Store Python's answers about the calls that were collected last. */
static inline void take_answers(struct flow *flow)
{
    struct memory *memory = flow->memory;

    for (uint64_t n = 0; n < flow->asked_count && n < MAX_ASKED; n++)
        if (memory->answers[n]) {
            int index = find_start(flow, (int64_t)(memory->asked[n] - flow->base));
            if (index != NONE)
                memory->visited[index].flags |= RETURNS;
        }
    flow->asked_count = 0;
}

/* Return the number of instructions in a set. */
static inline uint32_t count_set(const struct memory *memory, uint8_t set)
{
    uint32_t count = 0;

    for (uint32_t n = 0; n < memory->visited_count; n++)
        count += (memory->found[n] & set) != 0;
    return count;
}

/* Copy a set to another one. */
static inline void copy_set(struct memory *memory, uint8_t from, uint8_t to)
{
    for (uint32_t n = 0; n < memory->visited_count; n++)
        if (memory->found[n] & from)
            memory->found[n] |= to;
}

/* Find the instructions whose states are proved. Returns 0 if answers from Python are needed. */
static inline int prove(struct flow *flow)
{
    struct memory *memory = flow->memory;
    int start = find_start(flow, memory->start);

    take_answers(flow);
    for (uint32_t n = 0; n < memory->visited_count; n++)
        memory->found[n] = 0;
    if (start != NONE)
        memory->found[start] = EVIDENCE;
    reach_forward(flow, EVIDENCE, 0);
    if (count_set(memory, EVIDENCE) == memory->visited_count) {
        copy_set(memory, EVIDENCE, EXACT);
        return 1;
    }
    for (uint32_t n = 0; n < memory->visited_count; n++)
        if (memory->visited[n].flags & LEAVES)
            memory->found[n] |= EVIDENCE;
    if (!invert_edges(flow))
        return 1;
    copy_set(memory, EVIDENCE, PROVED);
    reach_backward(memory, PROVED);
    if (!reach_beyond_calls(flow, PROVED))
        return 0;
    copy_set(memory, EVIDENCE, EXACT);
    for (uint32_t n = 0; n < memory->visited_count; n++)
        if (memory->found[n] & PROVED && memory->visited[n].flags & RESETS)
            for (uint64_t each = 0; each < count_targets(memory, &memory->visited[n]); each++) {
                int target = find_target(flow, &memory->visited[n], each);
                if (target != NONE)
                    memory->found[target] |= EXACT;
            }
    reach_backward(memory, EXACT);
    return reach_beyond_calls(flow, EXACT);
}

/* Return whether a run continues with a rule at an address. */
static inline int continues(const struct run *run, uint64_t at, const struct row *row)
{
    const int32_t *a = (const int32_t *)&run->row, *b = (const int32_t *)row;
    int32_t differs = run->end != at;

    for (unsigned n = 0; n < sizeof(*row) / 4; n++)
        differs |= a[n] ^ b[n];
    return !differs;
}

/* Write the rules of the proved instructions as runs. */
static inline void write_runs(struct flow *flow)
{
    struct memory *memory = flow->memory;
    const uint64_t *order = order_visited(memory);
    struct run *run = 0;
    uint32_t last = 0, last_without_sp = 0;

    flow->run_count = 0;
    flow->runs = memory->runs;
    for (uint32_t n = 0; n < memory->visited_count; n++) {
        uint32_t index = (uint32_t)order[n], without_sp = !(memory->found[index] & EXACT);
        const struct visited *found = &memory->visited[index];
        uint64_t at = flow->base + found->at;
        struct row row;

        if (without_sp && !(memory->found[index] & PROVED))
            continue;
        if (run && run->end == at && last == found->state && last_without_sp == without_sp) {
            run->end += found->size;
            continue;
        }
        if (!make_row(&memory->states[found->state], without_sp, &row))
            continue;
        last = found->state;
        last_without_sp = without_sp;
        if (run && continues(run, at, &row)) {
            run->end += found->size;
            continue;
        }
        run = &memory->runs[flow->run_count++];
        *run = (struct run){at, at + found->size, row};
    }
}

#endif
