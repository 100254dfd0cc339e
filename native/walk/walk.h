/* SPDX-License-Identifier: MIT */
/* The structures that the stack walker shares with Python. unwind/native_unwinder.py has the same ones, field by field.
 *
 * All fields are 64 bits wide. Pointers are addresses of arrays that Python owns and keeps alive while walk_stacks() runs.
 * The walker allocates nothing, calls no library, and stores nothing between calls except in these structures.
 */
#ifndef WALK_H
#define WALK_H

#include <stdint.h>

/* Flags of a rule, as in unwind/rule_cache.py. */
enum {
    CFA_FP = 1,
    RA_LR = 2,
    FP_SAVED = 4,
    FP_UNKNOWN = 8,
    SIGNAL = 16,
    OUTERMOST = 32,
    SLOW = 64,
    UNCOVERED = 128,
    PAC = 256,
    SP_SAVED = 512,
};

/* The reasons for the end of a stack, as in model.unwind_result.StackEnd. */
enum { END_ROOT = 1, END_UNREADABLE = 3, END_STUCK = 4, END_DEPTH = 5 };

/* The reasons for which walk_stacks() returns, most of them questions to Python. */
enum why {
    WHY_DONE,   /* all samples are walked */
    WHY_RULE,   /* the rule of the lookup pc `asked` is not known: answer with `rule` and `lasting` */
    WHY_CALLER, /* the frame needs more than a plain rule: answer with the caller, or with an end */
    WHY_ROOM,   /* no room for another frame: answer with larger columns */
    WHY_SAMPLE, /* the stack copy cannot be used: answer with an end */
};

/* What walk_stacks() does first when it is called. It sets the state when it returns, and Python may change it. */
enum state {
    STATE_SAMPLE, /* begin the sample at `position` */
    STATE_FRAME,  /* find the caller of the frame in the registers */
    STATE_RULE,   /* the same, by the rule that Python found */
    STATE_CALLER, /* append the frame in the registers, which `trust` found */
    STATE_END,    /* end the sample with `end` and `missing` */
};

/* One lookup pc and what is known about it. An entry whose `rule` is 0 is empty. */
struct entry {
    uint64_t pc;      /* lookup pc */
    uint32_t rule;    /* the id of its rule plus one in the low 24 bits, 0 there if unknown; IS_RETURN, IS_CODE */
    uint32_t version; /* 0, or the only version of the address space for which the rule holds */
};

enum {
    RULE_BITS = 0xFFFFFF,
    IS_RETURN = 1 << 24, /* the code before the return address may be a call */
    IS_CODE = 1 << 25,   /* the address may be code */
};

/* A call that was judged possible. An entry whose `kind` is 0 is empty. */
struct call {
    uint64_t ra, pc, kind; /* return address, lookup pc of the callee, 1 or 2 if the callee's pc is exact */
};

/* A hash table of 1 << bits entries. */
struct table {
    void *entries;
    uint64_t bits, used;
};

/* The address space of some samples. */
struct space {
    struct table returns, exacts, judged; /* rules by pc of return addresses and of others; calls */
    uint64_t version;                    /* of the rules that change while the process runs */
    uint64_t by_record;                  /* frames without a rule are followed by their frame records */
};

/* The rules, samples and results of a batch, and the sample in progress. */
struct walk {
    /* the rules: columns of RuleTable */
    const uint16_t *flags;
    const uint64_t *cfa_off, *ra_off, *fp_off, *saved_sp_off;
    const uint8_t *trusts;
    uint64_t rules_count;

    /* the architecture */
    uint64_t word, swapped, mask, pc_mask, pac_mask, sp_off;
    uint64_t chain_next, chain_ra, chain_cfa;
    uint64_t columns, pc_column, sp_column, fp_column, lr_column; /* lr_column is `columns` if there is none */

    /* limits and constants */
    uint64_t max_depth, trust_code, trust_fp;
    uint64_t strict; /* only rules that use and restore nothing but sp and fp; write `fps` and `rules` */

    /* the samples: columns of a batch */
    const uint8_t *data;
    uint64_t data_size;
    const uint64_t *bases;
    const int64_t *offsets, *sizes;
    const uint64_t *registers;
    const uint8_t *has_all; /* 1 if all registers of the sample are known, else only pc and sp are */

    /* the samples to walk: index in the batch, and index into `spaces` */
    const int64_t *order;
    const int64_t *order_space;
    uint64_t count;
    struct space *const *spaces;

    /* the result, by index in the batch */
    int64_t *begins, *counts;
    uint8_t *ends;
    uint64_t *missings, *tops;

    /* the frames of all samples, one sample after the other */
    uint64_t *pcs, *sps;
    uint8_t *exacts, *trusts_found;
    uint64_t *fps;
    int64_t *rules;
    uint64_t room, used;

    /* the sample in progress: its first frame, and the registers of its current frame */
    uint64_t state, position, first;
    uint64_t pc, sp, fp, lr, fp_known, lr_known, exact, top, trust, cfa;

    /* question and answer */
    uint64_t why, asked, rule, lasting, end, missing;
    uint64_t marks; /* with STATE_CALLER: IS_CODE of the callee, IS_RETURN of the caller, or IS_CALL */
};

enum { IS_CALL = 1 << 26 /* the caller may have called the callee */ };

#endif
