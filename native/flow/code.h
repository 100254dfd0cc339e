/* SPDX-License-Identifier: MIT */
/* Tests of the code around an instruction. Offsets are relative to the begin of the code, and may be outside of it. */
#ifndef CODE_H
#define CODE_H

#include "memory.h"

static inline int is_inside(const struct flow *flow, int64_t at)
{
    return at >= 0 && (uint64_t)at < flow->size;
}

/* Return the index of the first number of an ascending list that is greater than a value. */
static inline uint64_t first_above(const uint64_t *list, uint64_t count, uint64_t value)
{
    uint64_t low = 0;

    while (low < count) {
        uint64_t middle = low + (count - low) / 2;
        if (list[middle] > value)
            count = middle;
        else
            low = middle + 1;
    }
    return low;
}

static inline int is_in(const uint64_t *list, uint64_t count, uint64_t value)
{
    uint64_t at = first_above(list, count, value);

    return at > 0 && list[at - 1] == value;
}

static inline int is_function_start(const struct flow *flow, int64_t at)
{
    return is_in(flow->certain, flow->certain_count, flow->base + (uint64_t)at);
}

static inline int may_be_start(const struct flow *flow, int64_t at)
{
    return is_function_start(flow, at) || is_in(flow->named, flow->named_count, flow->base + (uint64_t)at);
}

/* Return the first certain start of a function above an offset, or the end of the code. */
static inline int64_t next_start(const struct flow *flow, int64_t at)
{
    uint64_t found = first_above(flow->limits, flow->limit_count, flow->base + (uint64_t)at);

    if (found < flow->limit_count && flow->limits[found] - flow->base < flow->size)
        return (int64_t)(flow->limits[found] - flow->base);
    return (int64_t)flow->size;
}

static inline int is_aligned(const struct flow *flow, int64_t at)
{
    return (flow->base + (uint64_t)at) % 16 == 0;
}

static inline int has_bytes(const struct flow *flow, int64_t at, const char *text, unsigned count)
{
    if (!is_inside(flow, at) || flow->size - (uint64_t)at < count)
        return 0;
    for (unsigned n = 0; n < count; n++)
        if (flow->data[at + n] != (uint8_t)text[n])
            return 0;
    return 1;
}

static inline int byte_at(const struct flow *flow, int64_t at)
{
    return is_inside(flow, at) ? flow->data[at] : -1;
}

/* Return whether an aligned offset begins as functions do: endbr64, a push of a callee-saved register, sub $n,%rsp. */
static inline int has_prologue(const struct flow *flow, int64_t at)
{
    int first = byte_at(flow, at), second = byte_at(flow, at + 1);

    if (at < 0 || !is_aligned(flow, at))
        return 0;
    if (first == 0x53 || first == 0x55 || (first == 0x41 && second >= 0x54 && second <= 0x57))
        return 1;
    if (first == 0x48 && (second == 0x81 || second == 0x83))
        return byte_at(flow, at + 2) == 0xEC;
    return has_bytes(flow, at, "\xF3\x0F\x1E\xFA", 4);
}

/* Return the offset after nops, traps and zeros. */
static inline int64_t end_of_padding(const struct flow *flow, int64_t at)
{
    struct instruction i;

    while (is_inside(flow, at)) {
        int byte = flow->data[at];
        if (byte == 0 || byte == 0x90 || byte == 0xCC) {
            at++;
            continue;
        }
        if (byte != 0x66 && byte != 0x2E && byte != 0x0F)
            break;
        if (!decode(flow->data, flow->size, (uint64_t)at, &i) || i.odd_prefix || i.rex ||
            !((i.map == 0 && i.opcode == 0x90) || (i.map == 1 && i.opcode == 0x1F)))
            break;
        at += i.size;
    }
    return at;
}

static inline int is_direct_call(const struct instruction *i)
{
    return i->map == 0 && i->opcode == 0xE8;
}

static inline int is_call(const struct instruction *i)
{
    return is_direct_call(i) || (i->map == 0 && i->opcode == 0xFF && kind_of(i) == 2);
}

/* Find the slot of the GOT through which a call goes, itself or by the PLT. Returns 0 if there is none. */
static inline int called_slot(const struct flow *flow, const struct instruction *i, int64_t at, uint64_t *slot)
{
    int64_t target = at + i->size;

    if (!is_direct_call(i)) {
        *slot = flow->base + (uint64_t)(target + signed_at(i, i->operand + 1, 4));
        return modrm_of(i) == 0x15;
    }
    target += signed_at(i, i->size - 4, 4);
    if (has_bytes(flow, target, "\xF3\x0F\x1E\xFA", 4))
        target += 4;
    if (byte_at(flow, target) == 0xF2)
        target++;
    if (!has_bytes(flow, target, "\xFF\x25", 2) || !is_inside(flow, target + 5))
        return 0;
    int32_t distance;
    __builtin_memcpy(&distance, flow->data + target + 2, 4);
    *slot = flow->base + (uint64_t)(target + 6 + distance);
    return 1;
}

/* Return whether a call is one of an imported function that does not return, such as abort. */
static inline int never_returns(const struct flow *flow, const struct instruction *i, int64_t at)
{
    uint64_t slot, found;

    if (!called_slot(flow, i, at, &slot))
        return 0;
    found = first_above(flow->slots, flow->slot_count, slot);
    return found > 0 && flow->slots[found - 1] == slot && !flow->slot_returns[found - 1];
}

/* Return whether the code after a call may be another function: padding follows, or an aligned address. */
static inline int ends_function(const struct flow *flow, int64_t call)
{
    struct instruction i;
    int64_t end = call;

    if (decode(flow->data, flow->size, (uint64_t)call, &i))
        end += i.size;
    return is_aligned(flow, end) || end_of_padding(flow, end) > end;
}

/* Return whether an instruction is `leave`, or a `mov` or `lea` from rbp to rsp. */
static inline int sets_rsp_from_rbp(const struct instruction *i)
{
    struct memory_operand memory;

    if (i->map)
        return 0;
    if (i->opcode == 0x8D)
        return reg_of(i) == RSP && memory_of(i, &memory) && memory.base == RBP;
    return i->opcode == 0xC9 || (i->opcode == 0x89 && modrm_of(i) == 0xEC) || (i->opcode == 0x8B && modrm_of(i) == 0xE5);
}

/* Find the bytes of the file at an address. Returns their number. */
static inline uint64_t find_bytes(struct flow *flow, uint64_t address, const uint8_t **bytes)
{
    for (uint64_t n = 0; n < flow->segment_count; n++) {
        uint64_t offset = address - flow->segments[n].vaddr;
        if (offset < flow->segments[n].size) {
            *bytes = flow->segments[n].bytes + offset;
            return flow->segments[n].room - offset;
        }
    }
    flow->missing = address;
    return 0;
}

/* Return the target of an entry of a jump table, as an offset in the code. */
static inline int64_t table_entry(const struct flow *flow, const struct jump_table *table, uint64_t entry)
{
    uint64_t wide;
    int32_t narrow;

    if (table->size == 8) {
        __builtin_memcpy(&wide, table->bytes + entry * 8, 8);
        return (int64_t)(table->origin + wide - flow->base);
    }
    __builtin_memcpy(&narrow, table->bytes + entry * 4, 4);
    return (int64_t)(table->origin + (uint64_t)(int64_t)narrow - flow->base);
}

enum { LOOK_BACK = 96 };

static inline uint64_t number_at(const uint8_t *text, int size)
{
    uint64_t value = 0;

    for (int n = 0; n < size; n++)
        value |= (uint64_t)text[n] << 8 * n;
    return value;
}

/* Return the number of bytes of the number with which an instruction compares, or 0 if it does not. */
static inline int compared_size(const struct instruction *i)
{
    if (i->map)
        return 0;
    if (i->opcode == 0x3C || ((i->opcode == 0x80 || i->opcode == 0x83) && kind_of(i) == 7))
        return 1;
    if (i->opcode == 0x3D || (i->opcode == 0x81 && kind_of(i) == 7))
        return i->narrow ? 2 : 4;
    return 0;
}

/* Return whether an instruction is a move or a vector instruction, which leaves the flags as they are. */
static inline int keeps_flags(const struct instruction *i)
{
    int op = i->opcode;

    if (i->map == 0)
        return (op >= 0x50 && op < 0x60) || op == 0x63 || (op >= 0x88 && op < 0x8C) || op == 0x8D || op == 0x90 ||
               (op >= 0xB0 && op < 0xC0) || op == 0xC6 || op == 0xC7;
    if (i->map == 1)
        return (op >= 0x10 && op < 0x18) || op == 0x1F || (op >= 0x28 && op < 0x2C) || (op >= 0x40 && op < 0x80) ||
               op == 0xB6 || op == 0xB7 || op == 0xBE || op == 0xBF || (op >= 0xC4 && op < 0xC7) ||
               (op >= 0xD0 && op < 0xFF);
    return 0;
}

/* Return the number of entries that the comparison before an indirect jump allows, or 0 if there is none. */
static inline uint64_t find_bound(const struct flow *flow, int64_t at)
{
    struct instruction i;
    int above = 0;

    for (int64_t end = at; at - end < LOOK_BACK;) {
        int index = find_covering(flow, end - 1), size;
        const struct visited *found = &flow->memory->visited[index == NONE ? 0 : index];

        if (index == NONE || (int64_t)found->at + found->size != end || found->flags & ENDS ||
            !decode(flow->data, flow->size, found->at, &i))
            return 0;
        end = found->at;
        size = compared_size(&i);
        if (!above)
            above = (i.map == 0 && i.opcode == 0x77) || (i.map == 1 && i.opcode == 0x87);
        else if (size)
            return number_at(i.text + i.size - size, size) + 1;
        else if (!keeps_flags(&i))
            return 0;
    }
    return 0;
}

/* Return whether an indirect jump follows an addition, as one by a table does. Others leave the function. */
static inline int follows_addition(const struct flow *flow, int64_t at)
{
    int rex = byte_at(flow, at - 3), opcode = byte_at(flow, at - 2);

    return rex >= 0x48 && rex < 0x50 && (opcode == 0x01 || opcode == 0x03) && byte_at(flow, at - 1) >= 0xC0;
}

#endif
