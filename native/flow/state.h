/* SPDX-License-Identifier: MIT */
/* The places of the CFA and of the caller's registers before an instruction, and how instructions change them.
 *
 * unwind/code_analysis/cfa_and_register_state.py is the specification, and has the same functions. A function returns 0
 * if it finds a contradiction.
 */
#ifndef STATE_H
#define STATE_H

#include "x86.h"

enum { CFA = -1, SPECIAL = -2, UNKNOWN = -3, SAVED = 6, MAX_OFFSET = 1 << 30, CALLER_SAVED = 0x0FC7,
       RED_ZONE = 128 };

/* An offset from an origin: from the CFA, or from the value that the instruction at code offset `origin` gave to rsp. */
struct place {
    int32_t origin, offset;
};

static const struct place NOWHERE = {UNKNOWN, 0}, KEPT = {SPECIAL, 0}, LOST = {SPECIAL, 1};

/* What is known before an instruction. */
struct state {
    struct place values[REGISTERS]; /* place to which each general register points */
    struct place saved[SAVED];      /* places at which rbx, rbp, r12 to r15 of the caller are saved */
    struct place kept;              /* place of a word that contains CFA + kept_offset, without its index; or NOWHERE */
    int32_t kept_index, kept_scale, kept_offset;
    int32_t outermost;
};

static inline int is_same(struct place one, struct place two)
{
    return one.origin == two.origin && one.offset == two.offset;
}

static inline int is_equal(const struct state *one, const struct state *two)
{
    const int32_t *a = (const int32_t *)one, *b = (const int32_t *)two;
    int32_t differs = 0;

    for (unsigned n = 0; n < sizeof(*one) / 4; n++)
        differs |= a[n] ^ b[n];
    return !differs;
}

/* Return the index of a callee-saved register in `saved`, or NONE. */
static inline int slot_of(int reg)
{
    return reg == RBX ? 0 : reg == RBP ? 1 : reg >= 12 ? reg - 10 : NONE;
}

static inline void forget_kept(struct state *state)
{
    state->kept = NOWHERE;
    state->kept_index = NONE;
    state->kept_scale = state->kept_offset = 0;
}

static inline int keeps(const struct state *state)
{
    return state->kept.origin != UNKNOWN;
}

static inline void begin_state(struct state *state)
{
    for (int reg = 0; reg < REGISTERS; reg++)
        state->values[reg] = NOWHERE;
    state->values[RSP] = (struct place){CFA, -8};
    for (int at = 0; at < SAVED; at++)
        state->saved[at] = KEPT;
    forget_kept(state);
    state->outermost = 0;
}

static inline int has_distance(const struct state *state, int reg)
{
    return state->values[reg].origin == CFA;
}

/* Return the register, rbp or rsp, that points to an offset from an origin, or NONE. */
static inline int pointer_to(const struct state *state, int32_t origin)
{
    if (state->values[RBP].origin == origin)
        return RBP;
    return state->values[RSP].origin == origin ? RSP : NONE;
}

static inline int has_cfa(const struct state *state)
{
    if (state->outermost || has_distance(state, RSP) || has_distance(state, RBP))
        return 1;
    for (int reg = 0; reg < REGISTERS; reg++)
        if (has_distance(state, reg))
            return 1;
    return keeps(state) && pointer_to(state, state->kept.origin) != NONE;
}

/* Give a register other than rsp a value. */
static inline void set_value(struct state *state, int reg, struct place value)
{
    if (reg == RBP && is_same(state->saved[1], KEPT))
        state->saved[1] = LOST;
    if (keeps(state) && state->kept_index == reg)
        forget_kept(state);
    state->values[reg] = value;
}

static inline void forget_values(struct state *state, int mask)
{
    for (int reg = 0; mask >> reg; reg++)
        if (mask >> reg & 1)
            set_value(state, reg, NOWHERE);
}

/* Return whether a place is certainly, or perhaps, more than some room below rsp. Other origins than the CFA lie below
 * it. */
static inline int is_below(struct place place, struct place sp, int room)
{
    if (place.origin == SPECIAL)
        return 0;
    return place.origin == sp.origin ? place.offset < sp.offset - room : sp.origin == CFA;
}

static inline int set_sp(struct state *state, struct place sp)
{
    state->values[RSP] = sp;
    if (sp.origin == UNKNOWN)
        return 1;
    if (sp.offset > MAX_OFFSET || sp.offset < -MAX_OFFSET || (sp.origin == CFA && sp.offset > -8))
        return 0;
    for (int at = 0; at < SAVED; at++)
        if (is_below(state->saved[at], sp, 0))
            state->saved[at] = LOST;
    if (keeps(state) && is_below(state->kept, sp, RED_ZONE))
        forget_kept(state);
    return 1;
}

/* Store eight bytes in the frame: a register, or another value if `reg` is NONE. The stored value points to `value`. */
static inline void store_word(struct state *state, int reg, struct place place, int index, int scale,
                              struct place value)
{
    struct place sp = state->values[RSP];
    int at = slot_of(reg), same;

    if (sp.origin != UNKNOWN && is_below(place, sp, reg < 0 || value.origin != UNKNOWN ? RED_ZONE : 0))
        return;
    if (at >= 0 && index < 0 && is_same(state->saved[at], KEPT) && value.origin == UNKNOWN &&
        (place.origin != CFA || (place.offset < -8 && place.offset % 8 == 0)))
        state->saved[at] = place;
    same = keeps(state) && is_same(state->kept, place) && state->kept_index == index;
    if (value.origin == CFA) {
        if (!keeps(state) || value.offset >= state->kept_offset || same) {
            state->kept = place;
            state->kept_index = index;
            state->kept_scale = scale;
            state->kept_offset = value.offset;
        }
    } else if (same)
        forget_kept(state);
}

/* Push a register, or another value if `reg` is NONE. The pushed value points to `value`. */
static inline int push(struct state *state, int reg, struct place value)
{
    struct place place = state->values[RSP];

    if (place.origin == UNKNOWN || state->outermost)
        return 1;
    place.offset -= 8;
    if (!set_sp(state, place))
        return 0;
    store_word(state, reg, place, NONE, 0, value);
    return 1;
}

/* Return the place to which a value that is loaded from a place points. */
static inline struct place loaded_value(const struct state *state, struct place place, int index, int scale)
{
    if (keeps(state) && place.origin != UNKNOWN && is_same(state->kept, place) && state->kept_index == index &&
        state->kept_scale == scale)
        return (struct place){CFA, state->kept_offset};
    return NOWHERE;
}

/* Load eight bytes from a place into a register other than rsp. */
static inline void load_word(struct state *state, int reg, struct place place, int index, int scale)
{
    int at = slot_of(reg), restored = at >= 0 && index < 0 && place.origin != UNKNOWN && is_same(state->saved[at], place);

    set_value(state, reg, loaded_value(state, place, index, scale));
    if (restored)
        state->saved[at] = KEPT;
}

/* Pop into a register, or elsewhere if `reg` is NONE, by the instruction at code offset `here`. */
static inline int pop(struct state *state, int reg, int32_t here)
{
    struct place sp = state->values[RSP];
    int at = slot_of(reg);

    if (state->outermost)
        return 1;
    if (sp.origin == CFA && sp.offset >= -8)
        return 0;
    if (at >= 0 && is_same(state->saved[at], KEPT))
        state->saved[at] = LOST;
    if (reg == RSP)
        return set_sp(state, (struct place){here, 0});
    if (reg >= 0)
        load_word(state, reg, sp, NONE, 0);
    if (sp.origin == UNKNOWN)
        return 1;
    sp.offset += 8;
    return set_sp(state, sp);
}

/* Forget the values that a call may overwrite before it returns. */
static inline void leave_call(struct state *state)
{
    if (state->values[RSP].origin != UNKNOWN && keeps(state) && is_below(state->kept, state->values[RSP], 0))
        forget_kept(state);
    forget_values(state, CALLER_SAVED);
}

/* Keep what two states have in common. Returns 0 if they contradict each other. */
static inline int merge(const struct state *one, const struct state *two, struct state *found)
{
    *found = *one;
    if (one->outermost != two->outermost)
        return 0;
    for (int reg = 0; reg < REGISTERS; reg++)
        if (!is_same(one->values[reg], two->values[reg]))
            found->values[reg] = NOWHERE;
    for (int at = 0; at < SAVED; at++)
        if (!is_same(one->saved[at], two->saved[at]))
            found->saved[at] = LOST;
    if (!is_same(one->kept, two->kept) || one->kept_index != two->kept_index || one->kept_scale != two->kept_scale ||
        one->kept_offset != two->kept_offset)
        forget_kept(found);
    if (has_distance(one, RSP) && has_distance(two, RSP))
        return has_distance(found, RSP) || has_distance(found, RBP);
    return has_cfa(found);
}

#endif
