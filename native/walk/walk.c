/* SPDX-License-Identifier: MIT */
/* The walk of all samples of a batch by plain rules.
 *
 * walk_stacks() walks one sample after the other. It returns to Python whenever it needs something that Python knows: the
 * rule of a new pc, the caller of a frame whose rule is not plain, more room. Python answers in struct walk and calls
 * again, and the walk continues where it was.
 */
#include "rules.h"

#define EXPORT __attribute__((visibility("default")))
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Return to Python for an answer. `state` is what walk_stacks() then does first. */
static int ask(struct walk *walk, enum why why, enum state state)
{
    walk->why = why;
    walk->state = state;
    return 0;
}

static void keep_frame(struct walk *walk, const struct frame *frame)
{
    walk->pc = frame->pc;
    walk->sp = frame->sp;
    walk->fp = frame->fp;
    walk->lr = frame->lr;
    walk->fp_known = frame->fp_known;
    walk->lr_known = frame->lr_known;
    walk->exact = frame->exact;
}

static struct frame kept_frame(const struct walk *walk)
{
    return (struct frame){
        .pc = walk->pc,
        .sp = walk->sp,
        .fp = walk->fp,
        .lr = walk->lr,
        .fp_known = walk->fp_known != 0,
        .lr_known = walk->lr_known != 0,
        .exact = walk->exact != 0,
    };
}

/* Append a frame. There must be room. */
static inline void push_frame(struct walk *walk, const struct frame *frame, uint64_t trust, uint64_t rule)
{
    uint64_t at = walk->used++;

    walk->pcs[at] = frame->pc;
    walk->sps[at] = frame->sp;
    walk->exacts[at] = frame->exact;
    walk->trusts_found[at] = (uint8_t)trust;
    if (walk->strict) {
        walk->fps[at] = frame->fp_known ? frame->fp : ~(uint64_t)0;
        walk->rules[at] = (int64_t)rule;
    }
}

/* Begin the next sample with its innermost frame. Returns 0 if there is no room for it. */
static int begin_sample(struct walk *walk, const struct stack *stack, int64_t lane)
{
    const uint64_t *registers = walk->registers + (uint64_t)lane * walk->columns;
    struct frame frame = {
        .pc = registers[walk->pc_column],
        .sp = registers[walk->sp_column],
        .fp = registers[walk->fp_column],
        .fp_known = walk->has_all[lane] != 0,
        .exact = 1,
    };

    if (walk->used >= walk->room)
        return ask(walk, WHY_ROOM, STATE_SAMPLE);
    if (walk->lr_column < walk->columns) {
        frame.lr = registers[walk->lr_column];
        frame.lr_known = frame.fp_known;
    }
    walk->first = walk->used;
    walk->top = stack_holds(stack, walk->word, frame.sp) ? frame.sp : 0;
    push_frame(walk, &frame, 0, 0);
    keep_frame(walk, &frame);
    return 1;
}

static void end_sample(struct walk *walk, int64_t lane, uint64_t end, uint64_t missing)
{
    walk->begins[lane] = (int64_t)walk->first;
    walk->counts[lane] = (int64_t)(walk->used - walk->first);
    walk->ends[lane] = (uint8_t)end;
    walk->missings[lane] = missing;
    walk->tops[lane] = walk->top;
    walk->position++;
    walk->state = STATE_SAMPLE;
}

/* Store what Python found out about the callee, which is the last frame, and about its caller, which is in the registers. */
static void take_marks(struct walk *walk, struct space *space)
{
    uint64_t at = walk->used - 1, pc = walk->pcs[at];
    int exact = walk->exacts[at] != 0;

    if (walk->marks & IS_CODE && !exact)
        put_entry(&space->returns, pc - 1)->rule |= IS_CODE;
    if (walk->marks & IS_RETURN)
        put_entry(&space->returns, walk->pc - 1)->rule |= IS_RETURN;
    if (walk->marks & IS_CALL)
        put_call(&space->judged, walk->pc, exact ? pc : pc - 1, 1 + (uint64_t)exact);
    walk->marks = 0;
}

/* Append callers of the frame in the registers. Returns 1 if the sample has ended, 0 if Python is asked. */
ALWAYS_INLINE int walk_frames(struct walk *walk, struct space *space, const struct stack *stack, int64_t lane,
                              uint64_t word, int swapped)
{
    struct frame frame = kept_frame(walk), caller;

    for (;;) {
        uint64_t pc = frame.exact ? frame.pc : frame.pc - 1, cfa = 0, missing = 0, rule, trust;
        const struct entry *entry = find_entry(frame.exact ? &space->exacts : &space->returns, pc);
        enum step step;

        if (!entry || !(entry->rule & RULE_BITS) || (entry->version && entry->version != (uint32_t)space->version)) {
            keep_frame(walk, &frame);
            walk->asked = pc;
            return ask(walk, WHY_RULE, STATE_RULE);
        }
        rule = (entry->rule & RULE_BITS) - 1;
        if (rule >= walk->rules_count)
            step = ASK;
        else if (walk->flags[rule] & UNCOVERED) {
            step = step_by_record(walk, space, stack, word, swapped, entry, &frame, &caller, &cfa);
            trust = walk->trust_fp;
        } else {
            step = step_by_rule(walk, stack, word, swapped, rule, &frame, &caller, &cfa, &missing);
            trust = walk->trusts[rule];
            if (trust == walk->trust_code &&
                (walk->strict || step == ROOT ||
                 (step == FOUND && !has_call(&space->judged, caller.pc, pc, 1 + (uint64_t)frame.exact))))
                step = ASK;
        }
        walk->rule = rule;
        walk->cfa = cfa;
        if (step == ASK) {
            keep_frame(walk, &frame);
            return ask(walk, WHY_CALLER, STATE_CALLER);
        }
        if (step != OUTERMOST_FRAME && cfa > walk->top && stack_holds(stack, word, cfa))
            walk->top = cfa;
        if (step == ROOT || step == OUTERMOST_FRAME) {
            walk->asked = step == OUTERMOST_FRAME;
            return end_sample(walk, lane, END_ROOT, 0), 1;
        }
        if (step == UNREADABLE)
            return end_sample(walk, lane, END_UNREADABLE, missing), 1;
        if (step == STUCK)
            return end_sample(walk, lane, END_STUCK, 0), 1;
        if (walk->used - walk->first >= walk->max_depth)
            return end_sample(walk, lane, END_DEPTH, 0), 1;
        if (walk->used >= walk->room) {
            keep_frame(walk, &frame);
            return ask(walk, WHY_ROOM, STATE_FRAME);
        }
        push_frame(walk, &caller, trust, rule);
        frame = caller;
    }
}

/* Apply Python's answer for the sample in progress. Returns 1 if its walk can continue, 0 if the sample has ended or
 * there is another question to Python. */
static int take_answer(struct walk *walk, struct space *space, const struct stack *stack, int64_t lane)
{
    struct frame frame;

    switch (walk->state) {
    case STATE_SAMPLE:
        return begin_sample(walk, stack, lane);
    case STATE_RULE: {
        struct entry *entry = put_entry(walk->exact ? &space->exacts : &space->returns, walk->asked);
        entry->rule = (entry->rule & ~(uint32_t)RULE_BITS) | ((uint32_t)(walk->rule + 1) & RULE_BITS);
        entry->version = walk->lasting ? 0 : (uint32_t)space->version;
        return 1;
    }
    case STATE_CALLER:
        if (walk->used >= walk->room)
            return ask(walk, WHY_ROOM, STATE_CALLER);
        if (walk->marks)
            take_marks(walk, space);
        if (walk->used - walk->first >= walk->max_depth)
            return end_sample(walk, lane, END_DEPTH, 0), 0;
        frame = kept_frame(walk);
        push_frame(walk, &frame, walk->trust, 0);
        return 1;
    default:
        return 1;
    }
}

/* Walk samples until all are done or Python is asked. */
EXPORT void walk_stacks(struct walk *walk)
{
    int plain = walk->word == 8 && !walk->swapped;

    walk->why = WHY_DONE;
    while (walk->position < walk->count) {
        int64_t lane = walk->order[walk->position];
        struct space *space = walk->spaces[walk->order_space[walk->position]];
        struct stack stack;

        if (walk->state == STATE_END)
            end_sample(walk, lane, walk->end, walk->missing);
        else if (!open_stack(walk, lane, &stack)) {
            walk->first = walk->used;
            ask(walk, WHY_SAMPLE, STATE_END);
        } else if (take_answer(walk, space, &stack, lane)) {
            if (plain)
                walk_frames(walk, space, &stack, lane, 8, 0);
            else
                walk_frames(walk, space, &stack, lane, walk->word, walk->swapped != 0);
        }
        if (walk->why != WHY_DONE)
            return;
    }
}

/* Copy the entries of a table of lookup pcs into a larger, empty one. */
EXPORT void move_entries(const struct table *from, struct table *to)
{
    const struct entry *entries = from->entries;

    for (uint64_t slot = 0; slot >> from->bits == 0; slot++)
        if (entries[slot].rule != 0) {
            struct entry *entry = put_entry(to, entries[slot].pc);
            entry->rule = entries[slot].rule;
            entry->version = entries[slot].version;
        }
}

EXPORT void move_calls(const struct table *from, struct table *to)
{
    const struct call *calls = from->entries;

    for (uint64_t slot = 0; slot >> from->bits == 0; slot++)
        if (calls[slot].kind != 0)
            put_call(to, calls[slot].ra, calls[slot].pc, calls[slot].kind);
}
