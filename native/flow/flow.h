/* SPDX-License-Identifier: MIT */
/* The structures that the analysis of machine code shares with Python. The same structures are in
 * unwind/code_analysis/function_analysis_bindings.py.
 *
 * All fields of struct flow are 64 bits wide. Pointers are addresses of arrays that Python owns and keeps alive. The
 * analysis allocates nothing: everything that grows is in struct memory, whose arrays have fixed sizes.
 */
#ifndef FLOW_H
#define FLOW_H

#include "state.h"

enum {
    MAX_INSTRUCTIONS = 1 << 16,
    MAX_STEPS = 1 << 18,  /* work of one attempt; a new state counts as STATE_STEPS */
    MAX_WORK = 1 << 20,   /* work of all attempts */
    STATE_STEPS = 8,
    MAX_STATES = MAX_STEPS / STATE_STEPS + 2,
    MAX_TRIALS = 64,
    MAX_TABLE = 1024,     /* entries of a jump table */
    MAX_TABLES = 1024,    /* jump tables of a function */
    MAX_UNRESOLVED = 64,
    MAX_EDGES = 1 << 18,
    MAX_ASKED = 256,
    HASH_BITS = 17,
    NO_CALL = -1,
};

/* A segment of the file. A jump table that begins within `size` bytes may extend over `room` bytes. */
struct segment {
    uint64_t vaddr, size, room;
    const uint8_t *bytes;
};

/* The ways in which the caller's value of a callee-saved register is found, see struct saved_row. */
enum { IN_REGISTER, NOT_KNOWN, AT_CFA, AT_POINTER };

/* Where the caller's value of one callee-saved register is: at CFA + offset, or at [pointer + offset], by `kind`. */
struct saved_row {
    int32_t kind, pointer, offset;
};

/* The unwind rule of a state: CFA = reg + offset, or, if `pointer` is not NONE,
 * CFA = [pointer + place + (index << scale)] + distance. */
struct row {
    int32_t outermost, reg, offset;
    int32_t pointer, place, index, scale, distance;
    struct saved_row saved[SAVED];
};

/* A range of addresses whose instructions have the same unwind rule, as a part of the result. */
struct run {
    uint64_t start, end;
    struct row row;
};

/* The code to analyse, the function in it, the result, and the questions to Python. */
struct flow {
    /* the code: one segment, and what is known about its addresses; all lists are ascending */
    const uint8_t *data;
    uint64_t size, base;
    const uint64_t *certain, *named, *limits, *slots;
    uint64_t certain_count, named_count, limit_count, slot_count;
    const uint8_t *slot_returns; /* 1 if the imported function of the GOT slot may return */
    const struct segment *segments;
    uint64_t segment_count, entry;
    struct memory *memory;

    /* the function, and the result */
    uint64_t start, returns, end;
    uint64_t missing; /* address of a jump table that is in no segment, 0 if there is none */
    struct run *runs;
    uint64_t run_count;

    /* question and answer of flow_prove() */
    uint64_t *asked; /* addresses of calls whose return must be known */
    uint8_t *answers; /* 1 if the called function returns */
    uint64_t asked_count;
};

#endif
