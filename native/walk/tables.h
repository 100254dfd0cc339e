/* SPDX-License-Identifier: MIT */
/* Hash tables of lookup pcs and of calls, by open addressing.
 *
 * A target chooses its addresses. So a search ends after PROBES entries, and an address that finds no room replaces
 * another one, which Python then has to find again.
 */
#ifndef TABLES_H
#define TABLES_H

#include "walk.h"

enum { PROBES = 32 };

static inline uint64_t slot_of(uint64_t key, uint64_t bits)
{
    return bits ? key * 0x9E3779B97F4A7C15u >> (64 - bits) : 0;
}

/* Return the entry of a lookup pc, or NULL. */
static inline struct entry *find_entry(const struct table *table, uint64_t pc)
{
    struct entry *entries = table->entries;
    uint64_t slot = slot_of(pc, table->bits), last = ((uint64_t)1 << table->bits) - 1;

    for (unsigned probe = 0; probe < PROBES; probe++, slot = (slot + 1) & last) {
        struct entry *entry = &entries[slot];
        if (entry->rule == 0)
            return 0;
        if (entry->pc == pc)
            return entry;
    }
    return 0;
}

/* Return the entry of a lookup pc, which is made if it is new. Its `rule` must be set to something else than 0. */
static inline struct entry *put_entry(struct table *table, uint64_t pc)
{
    struct entry *entries = table->entries;
    uint64_t home = slot_of(pc, table->bits), last = ((uint64_t)1 << table->bits) - 1;
    struct entry *found = &entries[home];

    for (unsigned probe = 0; probe < PROBES; probe++) {
        struct entry *entry = &entries[(home + probe) & last];
        if (entry->rule != 0 && entry->pc == pc)
            return entry;
        if (entry->rule == 0) {
            found = entry;
            table->used++;
            break;
        }
    }
    found->pc = pc;
    found->rule = 0;
    found->version = 0;
    return found;
}

static inline int is_call(const struct call *call, uint64_t ra, uint64_t pc, uint64_t kind)
{
    return call->ra == ra && call->pc == pc && call->kind == kind;
}

/* Return whether a call is known to be possible. */
static inline int has_call(const struct table *table, uint64_t ra, uint64_t pc, uint64_t kind)
{
    const struct call *calls = table->entries;
    uint64_t slot = slot_of(ra ^ pc, table->bits), last = ((uint64_t)1 << table->bits) - 1;

    for (unsigned probe = 0; probe < PROBES && calls[slot].kind != 0; probe++, slot = (slot + 1) & last)
        if (is_call(&calls[slot], ra, pc, kind))
            return 1;
    return 0;
}

static inline void put_call(struct table *table, uint64_t ra, uint64_t pc, uint64_t kind)
{
    struct call *calls = table->entries;
    uint64_t home = slot_of(ra ^ pc, table->bits), last = ((uint64_t)1 << table->bits) - 1;
    struct call *found = &calls[home];

    for (unsigned probe = 0; probe < PROBES; probe++) {
        struct call *call = &calls[(home + probe) & last];
        if (is_call(call, ra, pc, kind))
            return;
        if (call->kind == 0) {
            found = call;
            table->used++;
            break;
        }
    }
    found->ra = ra;
    found->pc = pc;
    found->kind = kind;
}

#endif
