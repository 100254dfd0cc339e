/* SPDX-License-Identifier: MIT */
/* The unwind rule of a state: make_row() in unwind/code_analysis/cfa_and_register_state.py is the specification. */
#ifndef ROW_H
#define ROW_H

#include "flow.h"

/* Return the rule for a callee-saved register that is saved at a place. */
static inline struct saved_row row_of_saved(const struct state *state, struct place place)
{
    struct place sp = state->values[RSP];
    int pointer;

    if (is_same(place, KEPT))
        return (struct saved_row){IN_REGISTER, NONE, 0};
    if (place.origin == CFA && (sp.origin != CFA || place.offset >= sp.offset))
        return (struct saved_row){AT_CFA, NONE, place.offset};
    if (place.origin == CFA || place.origin == SPECIAL || (pointer = pointer_to(state, place.origin)) == NONE)
        return (struct saved_row){NOT_KNOWN, NONE, 0};
    return (struct saved_row){AT_POINTER, pointer, place.offset - state->values[pointer].offset};
}

/* Make the unwind rule of a state, without use of rsp if `without_sp` is set. Returns 0 if the CFA is not known. */
static inline int make_row(const struct state *given, int without_sp, struct row *row)
{
    static const int8_t BASES[REGISTERS] = {RSP, RBP, RBX, 12, 13, 14, 15, RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11};
    struct state state = *given;
    int pointer = NONE, base = 0;

    *row = (struct row){state.outermost, RSP, 0, NONE, 0, NONE, 0, 0, {{0}}};
    if (state.outermost)
        return 1;
    if (without_sp)
        state.values[RSP] = NOWHERE;
    for (int at = 0; at < SAVED; at++)
        row->saved[at] = row_of_saved(&state, state.saved[at]);
    if (keeps(&state) && !has_distance(&state, RSP) && !has_distance(&state, RBP))
        pointer = pointer_to(&state, state.kept.origin);
    if (pointer != NONE) {
        row->reg = NONE;
        row->pointer = pointer;
        row->place = state.kept.offset - state.values[pointer].offset;
        row->index = state.kept_index;
        row->scale = state.kept_scale;
        row->distance = -state.kept_offset;
        return 1;
    }
    while (base < REGISTERS && !has_distance(&state, BASES[base]))
        base++;
    if (base == REGISTERS)
        return 0;
    row->reg = BASES[base];
    row->offset = -state.values[BASES[base]].offset;
    return 1;
}

#endif
