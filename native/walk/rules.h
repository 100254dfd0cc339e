/* SPDX-License-Identifier: MIT */
/* The caller of one frame, by a plain rule or by a frame record. scalar.apply_rule is the specification. */
#ifndef RULES_H
#define RULES_H

#include "stack.h"
#include "tables.h"

/* The registers of one frame. */
struct frame {
    uint64_t pc, sp, fp, lr;
    uint8_t fp_known, lr_known, exact;
};

/* The result of a step: a caller, an end of the stack, or a question to Python. */
enum step { FOUND, ROOT, OUTERMOST_FRAME, UNREADABLE, STUCK, ASK };

/* Flags of rules that the walker executes. */
enum {
    PLAIN = CFA_FP | RA_LR | FP_SAVED | FP_UNKNOWN | SIGNAL | PAC | SP_SAVED,
    STRICT = CFA_FP | FP_SAVED,
};

/* Find the caller's frame pointer. A register that is already popped has the caller's value, and its slot lies below sp. */
static inline int restore_fp(const struct walk *walk, const struct stack *stack, uint64_t word, int swapped,
                             unsigned flags, uint64_t slot, struct frame *caller)
{
    uint64_t callee_sp = caller->sp;

    if (flags & FP_SAVED) {
        enum load load = load_word(stack, word, swapped, slot, &caller->fp);
        if (load == MISALIGNED || (load == OUTSIDE && walk->strict))
            return 0;
        if (load == LOADED)
            caller->fp_known = 1;
        else if ((flags & SIGNAL) || slot >= callee_sp)
            caller->fp_known = 0;
    } else if (flags & FP_UNKNOWN)
        caller->fp_known = 0;
    return 1;
}

/* Find the caller of a frame by its rule. On UNREADABLE the missing address is stored in `missing`. */
static inline enum step step_by_rule(const struct walk *walk, const struct stack *stack, uint64_t word, int swapped,
                                     uint64_t rule, const struct frame *frame, struct frame *caller, uint64_t *cfa,
                                     uint64_t *missing)
{
    unsigned flags = walk->flags[rule];
    uint64_t mask = word == 8 ? ~(uint64_t)0 : walk->mask;
    uint64_t ra, sp;

    if (flags & OUTERMOST)
        return OUTERMOST_FRAME;
    if (flags & ~(walk->strict ? STRICT : PLAIN) || ((flags & CFA_FP) && !frame->fp_known) ||
        ((flags & RA_LR) && !frame->lr_known))
        return ASK;
    *cfa = ((flags & CFA_FP ? frame->fp : frame->sp) + walk->cfa_off[rule]) & mask;
    if (flags & RA_LR)
        ra = frame->lr;
    else {
        *missing = (*cfa + walk->ra_off[rule]) & mask;
        enum load load = load_word(stack, word, swapped, *missing, &ra);
        if (load != LOADED)
            return load == OUTSIDE ? UNREADABLE : ASK;
    }
    *caller = *frame;
    caller->pc = ra & walk->pc_mask & ~(flags & PAC ? walk->pac_mask : 0);
    if (!caller->pc)
        return ROOT;
    if (!restore_fp(walk, stack, word, swapped, flags, (*cfa + walk->fp_off[rule]) & mask, caller))
        return ASK;
    sp = (*cfa + walk->sp_off) & mask;
    if ((flags & SP_SAVED) &&
        load_word(stack, word, swapped, (*cfa + walk->saved_sp_off[rule]) & mask, &sp) != LOADED)
        return ASK;
    if (!(flags & SIGNAL) && sp <= frame->sp && !(sp == frame->sp && frame->exact))
        return STUCK;
    caller->sp = sp;
    caller->lr_known = 0;
    caller->exact = (flags & SIGNAL) != 0;
    return FOUND;
}

/* Find the caller of a frame without a rule by its frame record, if that passes all checks. heuristics/frame_pointers.py
 * is the specification, and takes what does not. */
static inline enum step step_by_record(const struct walk *walk, const struct space *space, const struct stack *stack,
                                       uint64_t word, int swapped, const struct entry *entry,
                                       const struct frame *frame, struct frame *caller, uint64_t *cfa)
{
    uint64_t mask = word == 8 ? ~(uint64_t)0 : walk->mask;
    uint64_t base = frame->fp, next, ra;
    const struct entry *returns;

    if (!space->by_record || walk->strict || frame->exact || !frame->fp_known || !(entry->rule & IS_CODE))
        return ASK;
    if (base == 0 || base < frame->sp || base & (word - 1) ||
        load_word(stack, word, swapped, (base + walk->chain_next) & mask, &next) != LOADED ||
        load_word(stack, word, swapped, (base + walk->chain_ra) & mask, &ra) != LOADED)
        return ASK;
    ra &= walk->pc_mask & ~walk->pac_mask;
    if (ra == 0 || (next != 0 && next <= base))
        return ASK;
    returns = find_entry(&space->returns, ra - 1);
    if (!returns || !(returns->rule & IS_RETURN))
        return ASK;
    *cfa = (base + walk->chain_cfa) & mask;
    *caller = *frame;
    caller->pc = ra;
    caller->sp = *cfa;
    caller->fp = next;
    caller->lr_known = 0;
    return FOUND;
}

#endif
