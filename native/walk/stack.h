/* SPDX-License-Identifier: MIT */
/* Words of one sample's stack copy. */
#ifndef STACK_H
#define STACK_H

#include "walk.h"

/* The stack copy of one sample. */
struct stack {
    const uint8_t *bytes;
    uint64_t base; /* address of the first byte in the process */
    uint64_t last; /* highest offset of a whole word */
    uint64_t odd;  /* bits of an offset that must be 0 */
};

enum load { LOADED, OUTSIDE, MISALIGNED };

/* Load the word at an address. An address below the copy becomes a huge offset, so that one comparison is enough. */
static inline enum load load_word(const struct stack *stack, uint64_t word, int swapped, uint64_t avma, uint64_t *value)
{
    uint64_t offset = avma - stack->base;
    uint32_t half;

    if (offset > stack->last)
        return OUTSIDE;
    if (offset & stack->odd)
        return MISALIGNED;
    if (word == 8) {
        __builtin_memcpy(value, stack->bytes + offset, 8);
        if (swapped)
            *value = __builtin_bswap64(*value);
    } else {
        __builtin_memcpy(&half, stack->bytes + offset, 4);
        *value = swapped ? __builtin_bswap32(half) : half;
    }
    return LOADED;
}

/* Find the stack copy of a sample. Returns 0 if it has no whole word, or is not within the data. */
static inline int open_stack(const struct walk *walk, int64_t lane, struct stack *stack)
{
    uint64_t offset = (uint64_t)walk->offsets[lane], size = (uint64_t)walk->sizes[lane];

    if (walk->sizes[lane] < (int64_t)walk->word || offset > walk->data_size || size > walk->data_size - offset)
        return 0;
    stack->bytes = walk->data + offset;
    stack->base = walk->bases[lane];
    stack->last = size - walk->word;
    stack->odd = walk->strict ? walk->word - 1 : 0;
    return 1;
}

/* Return whether an address lies in the stack copy, or directly after its end. */
static inline int stack_holds(const struct stack *stack, uint64_t word, uint64_t avma)
{
    return avma - stack->base <= stack->last + word;
}

#endif
