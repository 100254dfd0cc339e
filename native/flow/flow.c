/* SPDX-License-Identifier: MIT */
/* The places of the CFA and of saved registers at each instruction of one x86-64 function, along all paths.
 *
 * unwind/code_analysis/x86_control_flow.py is the specification, and says what is proved. Its exceptions are the fields
 * `refused` and `exceeded` here.
 */
#include "proof.h"

#define EXPORT __attribute__((visibility("default")))

/* The compiler may call these for copies of structures. */
__attribute__((visibility("hidden"))) void *memcpy(void *to, const void *from, __SIZE_TYPE__ size)
{
    typedef uint64_t word __attribute__((aligned(1), may_alias));
    __SIZE_TYPE__ at = 0;

    for (; at + 8 <= size; at += 8)
        *(word *)((uint8_t *)to + at) = *(const word *)((const uint8_t *)from + at);
    for (; at < size; at++)
        ((uint8_t *)to)[at] = ((const uint8_t *)from)[at];
    return to;
}

__attribute__((visibility("hidden"))) void *memset(void *to, int value, __SIZE_TYPE__ size)
{
    for (__SIZE_TYPE__ n = 0; n < size; n++)
        ((uint8_t *)to)[n] = (uint8_t)value;
    return to;
}

__attribute__((visibility("hidden"))) int memcmp(const void *one, const void *two, __SIZE_TYPE__ size)
{
    const uint8_t *a = one, *b = two;

    for (__SIZE_TYPE__ n = 0; n < size; n++)
        if (a[n] != b[n])
            return a[n] < b[n] ? -1 : 1;
    return 0;
}

/* The present instruction and what is known about it. */
struct step {
    struct instruction i;
    int64_t at;
    int32_t call;
    struct state state; /* the state before it, and then after it */
    uint32_t before;    /* index of the state before it, or of the state with which it jumps */
    struct visited found;
};

/* Refuse the code as contradictory. `call` is the call that is most likely not to return, or NO_CALL. */
static int refuse(struct memory *memory, int32_t call)
{
    memory->refused = 1;
    memory->blamed = call;
    return 0;
}

static void put_path(struct memory *memory, int64_t at, uint32_t state, int32_t call)
{
    if (memory->waiting_count < MAX_STEPS)
        memory->waiting[memory->waiting_count++] = (struct path){(uint32_t)at, state, call};
    else
        memory->exceeded = 1;
}

/* Add the target of a jump to the paths to follow, unless it is outside of the code. */
static void jump_later(struct flow *flow, struct step *step, int64_t target)
{
    if (!is_inside(flow, target))
        return;
    step->found.target = (int32_t)target;
    put_path(flow->memory, target, step->before, step->call);
}

/* Handle a direct jump: within the function, or out of it. */
static void take_jump(struct flow *flow, struct step *step, int64_t target)
{
    struct memory *memory = flow->memory;
    int inside = memory->start <= target && target < memory->limit;

    if (!is_same(step->state.values[RSP], (struct place){CFA, -8}) || has_distance(&step->state, RBP)) {
        if (inside || has_cfa(&step->state))
            jump_later(flow, step, target);
    } else if (target == memory->start || (inside && !may_be_start(flow, target)))
        jump_later(flow, step, target);
    else if (is_function_start(flow, target) || has_prologue(flow, target) ||
             (memory->sure && (is_aligned(flow, target) || may_be_start(flow, target)))) {
        memory->returns++;
        step->found.flags |= LEAVES;
    } else if (memory->sure)
        jump_later(flow, step, target);
    else
        refuse(memory, step->call);
}

/* Read the entries of a jump table up to the first one that leads out of the function. Returns 0 if it cannot be used. */
static int read_table(struct flow *flow, struct jump_table *table, uint64_t address, int bounded)
{
    struct memory *memory = flow->memory;
    uint64_t most = table->count, room = find_bytes(flow, address, &table->bytes) / table->size;

    for (table->count = 0; table->count < most && table->count < room; table->count++) {
        int64_t target = table_entry(flow, table, table->count);
        if (target < memory->start || target >= memory->limit)
            break;
    }
    if (bounded && table->count < most)
        return 0;
    memory->used_open_table |= !bounded;
    return table->count > 0;
}

/* Find the table of an indirect jump in the code before it. Returns 0 if there is none that can be read. */
static int find_table(struct flow *flow, const struct step *step, struct jump_table *table)
{
    struct memory *memory = flow->memory;
    const struct instruction *i = &step->i;
    int size = step->at < LOOK_BACK ? (int)step->at : LOOK_BACK, loads = -1;
    const uint8_t *before = flow->data + step->at - size;
    uint64_t bound = find_bound(flow, step->at);
    int bounded = bound > 0;

    if (!bounded && !memory->open_tables)
        return 0;
    table->count = bounded && bound < MAX_TABLE ? bound : MAX_TABLE;
    if (rm_of(i) >= 0) {
        for (int at = 0; at + 7 <= size; at++)
            if ((before[at] == 0x48 || before[at] == 0x4C) && before[at + 1] == 0x8D && (before[at + 2] & 0xC7) == 5) {
                loads = at + 7;
                at += 6;
            }
        if (loads < 0)
            return 0;
        table->origin = flow->base + (uint64_t)(step->at - size + loads) +
                        (uint64_t)(int64_t)(int32_t)number_at(before + loads - 4, 4);
        table->size = 4;
        return read_table(flow, table, table->origin, bounded);
    }
    if ((modrm_of(i) & 0xC7) != 0x04 || (i->text[i->operand + 1] & 0xC7) != 0xC5)
        return 0;
    table->origin = 0;
    table->size = 8;
    return read_table(flow, table, (uint64_t)signed_at(i, i->operand + 2, 4), bounded);
}

/* Store a jump table and return its index. Each visit of a jump gives the same table. */
static int put_table(struct memory *memory, const struct jump_table *table)
{
    uint32_t at = 0;

    while (at < memory->table_count && (memory->tables[at].bytes != table->bytes ||
                                        memory->tables[at].count != table->count ||
                                        memory->tables[at].size != table->size))
        at++;
    if (at == MAX_TABLES) {
        memory->exceeded = 1;
        return NO_TABLE;
    }
    memory->tables[at] = *table;
    if (at == memory->table_count)
        memory->table_count++;
    return (int)at;
}

static void jump_indirectly(struct flow *flow, struct step *step)
{
    struct memory *memory = flow->memory;
    struct jump_table table;
    int at_entry = is_same(step->state.values[RSP], (struct place){CFA, -8});

    if (modrm_of(&step->i) == 0x25 && at_entry) {
        memory->returns++;
        step->found.flags |= LEAVES;
        return;
    }
    if ((!at_entry || follows_addition(flow, step->at)) && find_table(flow, step, &table)) {
        step->found.table = (int16_t)put_table(memory, &table);
        spend(memory, (uint32_t)table.count);
        for (uint64_t n = 0; n < table.count && !memory->exceeded; n++)
            put_path(memory, table_entry(flow, &table, n), step->before, step->call);
        return;
    }
    if (at_entry && memory->sure) {
        memory->returns++;
        step->found.flags |= LEAVES;
    }
    for (uint32_t n = 0; n < memory->unresolved_count; n++)
        if (is_equal(&memory->states[memory->unresolved[n]], &step->state))
            return;
    if (memory->unresolved_count < MAX_UNRESOLVED)
        memory->unresolved[memory->unresolved_count++] = step->before;
}

static void leave_function(struct memory *memory, struct step *step)
{
    if (is_same(step->state.values[RSP], (struct place){CFA, -8}) && !step->state.outermost) {
        memory->returns++;
        step->found.flags |= LEAVES;
    } else if (step->state.outermost || has_distance(&step->state, RSP) || has_distance(&step->state, RBP))
        refuse(memory, step->call);
}

/* Handle a call. Returns 0 if it does not return, or if the code is refused. */
static int take_call(struct flow *flow, struct step *step)
{
    struct memory *memory = flow->memory;

    if (step->call == NO_CALL && !memory->sure && has_distance(&step->state, RSP) &&
        step->state.values[RSP].offset % 16)
        return refuse(memory, NO_CALL);
    for (uint32_t n = 0; n < memory->no_return_count; n++)
        if (memory->no_return[n] == step->at)
            return 0;
    if (never_returns(flow, &step->i, step->at))
        return 0;
    leave_call(&step->state);
    return 1;
}

static struct place moved(struct place place, int64_t distance)
{
    int64_t offset = place.offset + distance;

    if (place.origin == UNKNOWN || offset > MAX_OFFSET || offset < -MAX_OFFSET)
        return NOWHERE;
    return (struct place){place.origin, (int32_t)offset};
}

/* Set a register's value by the present instruction. */
static int set_register(struct memory *memory, struct step *step, int reg, struct place value)
{
    if (reg != RSP) {
        set_value(&step->state, reg, value);
        return 1;
    }
    if (value.origin == UNKNOWN)
        value = (struct place){(int32_t)step->at, 0};
    return set_sp(&step->state, value) || refuse(memory, step->call);
}

/* Return the place of a memory operand without its index. */
static struct place find_word(const struct step *step, struct memory_operand *operand)
{
    *operand = (struct memory_operand){NONE, NONE, 0, 0};
    if (!memory_of(&step->i, operand)) {
        *operand = (struct memory_operand){NONE, NONE, 0, 0};
        return NOWHERE;
    }
    return moved(step->state.values[operand->base], operand->displacement);
}

/* Move eight bytes. */
static int move_word(struct memory *memory, struct step *step)
{
    const struct instruction *i = &step->i;
    struct state *state = &step->state;
    struct memory_operand operand;
    struct place place;
    int loads = i->opcode == 0x8B, rm = rm_of(i), reg = reg_of(i);

    if (rm >= 0)
        return loads ? set_register(memory, step, reg, state->values[rm])
                     : set_register(memory, step, rm, state->values[reg]);
    place = find_word(step, &operand);
    if (!loads) {
        if (place.origin != UNKNOWN)
            store_word(state, reg, place, operand.index, operand.scale, state->values[reg]);
        return 1;
    }
    if (reg == RSP)
        return set_register(memory, step, RSP, loaded_value(state, place, operand.index, operand.scale));
    load_word(state, reg, place, operand.index, operand.scale);
    return 1;
}

static int clears_frame_pointer(const struct memory *memory, const struct step *step)
{
    const struct instruction *i = &step->i;

    return (i->opcode == 0x31 || i->opcode == 0x33) && modrm_of(i) == 0xED && !(i->rex & 5) && memory->system_call &&
           is_same(step->state.saved[1], KEPT);
}

static void become_outermost(struct state *state)
{
    for (int reg = 0; reg < REGISTERS; reg++)
        state->values[reg] = NOWHERE;
    forget_kept(state);
    state->outermost = 1;
}

/* Compute or move data. */
static int compute(struct memory *memory, struct step *step)
{
    const struct instruction *i = &step->i;
    struct memory_operand operand;
    int written;

    if (step->state.outermost)
        return 1;
    if (i->map == 0) {
        if (clears_frame_pointer(memory, step)) {
            become_outermost(&step->state);
            return 1;
        }
        if (i->rex & 8 && (i->opcode == 0x89 || i->opcode == 0x8B))
            return move_word(memory, step);
        if (i->rex & 8 && i->opcode == 0x8D) {
            struct place value = find_word(step, &operand);
            return set_register(memory, step, reg_of(i), operand.index < 0 ? value : NOWHERE);
        }
        if (i->rex & 8 && (i->opcode == 0x81 || i->opcode == 0x83) && rm_of(i) >= 0 &&
            (kind_of(i) == 0 || kind_of(i) == 5)) {
            int64_t number = signed_at(i, i->operand + 1, i->size - i->operand - 1);
            return set_register(memory, step, rm_of(i), moved(step->state.values[rm_of(i)], kind_of(i) ? -number : number));
        }
    }
    written = written_registers(i);
    if (written == UNKNOWN_WRITE)
        return refuse(memory, step->call);
    if (written >> RSP & 1 && !set_register(memory, step, RSP, NOWHERE))
        return 0;
    forget_values(&step->state, written & ~(1 << RSP));
    return 1;
}

static int leave_frame(struct memory *memory, struct step *step)
{
    struct state *state = &step->state;

    if (state->values[RBP].origin == UNKNOWN && !state->outermost)
        return refuse(memory, step->call);
    if (!set_sp(state, state->values[RBP]) || !pop(state, RBP, (int32_t)step->at))
        return refuse(memory, step->call);
    return 1;
}

static int push_or_pop(struct memory *memory, struct step *step)
{
    const struct instruction *i = &step->i;
    int op = i->opcode, reg = (op & 7) + (i->rex << 3 & 8);

    if (op >= 0x50 && op < 0x58)
        return push(&step->state, reg, step->state.values[reg]) || refuse(memory, step->call);
    if (op == 0x68 || op == 0x6A || op == 0x9C)
        return push(&step->state, NONE, NOWHERE) || refuse(memory, step->call);
    if (op >= 0x58 && op < 0x60)
        return pop(&step->state, reg, (int32_t)step->at) || refuse(memory, step->call);
    if (op == 0x9D)
        return pop(&step->state, NONE, (int32_t)step->at) || refuse(memory, step->call);
    if (op == 0xC9)
        return leave_frame(memory, step);
    if (op == 0x8F) {
        if (kind_of(i))
            return refuse(memory, step->call);
        return pop(&step->state, rm_of(i), (int32_t)step->at) || refuse(memory, step->call);
    }
    return compute(memory, step);
}

/* Return the index of the present state, which is stored if it has changed. */
static uint32_t state_now(struct memory *memory, const struct step *step)
{
    if (is_equal(&memory->states[step->before], &step->state))
        return step->before;
    return put_state(memory, &step->state);
}

static int step_ff(struct flow *flow, struct step *step)
{
    struct memory_operand operand;
    struct place place, value;

    switch (kind_of(&step->i)) {
    case 2:
        return take_call(flow, step);
    case 6:
        place = find_word(step, &operand);
        value = loaded_value(&step->state, place, operand.index, operand.scale);
        return push(&step->state, NONE, value) || refuse(flow->memory, step->call);
    case 4:
        jump_indirectly(flow, step);
        return 0;
    case 3: case 5: case 7:
        return refuse(flow->memory, step->call);
    default:
        return compute(flow->memory, step);
    }
}

static int step_one(struct flow *flow, struct step *step)
{
    const struct instruction *i = &step->i;
    int64_t after = step->at + i->size;
    int op = i->opcode;

    if ((op >= 0x70 && op < 0x80) || (op >= 0xE0 && op < 0xE4)) {
        if (op >= 0xE0 && op < 0xE3)
            forget_values(&step->state, 1 << RCX);
        step->before = state_now(flow->memory, step);
        take_jump(flow, step, after + signed_at(i, i->size - 1, 1));
        return 1;
    }
    if (op == 0xE8) {
        if (signed_at(i, i->size - 4, 4) == 0)
            return push(&step->state, NONE, NOWHERE) || refuse(flow->memory, step->call);
        return take_call(flow, step);
    }
    if (op == 0xE9 || op == 0xEB) {
        int size = op == 0xE9 ? 4 : 1;
        take_jump(flow, step, after + signed_at(i, i->size - size, size));
        return 0;
    }
    if (op == 0xC3 || op == 0xC2) {
        leave_function(flow->memory, step);
        return 0;
    }
    if (op == 0xC7 && modrm_of(i) == 0xF8) {
        forget_values(&step->state, 1 << RAX);
        step->before = state_now(flow->memory, step);
        take_jump(flow, step, after + signed_at(i, i->size - 4, 4));
        return 1;
    }
    if (op == 0xFF)
        return step_ff(flow, step);
    if (op == 0xCC || op == 0xF4)
        return 0;
    return push_or_pop(flow->memory, step);
}

/* Change the state by the present instruction. Returns 0 if control does not continue after it, or if it is refused. */
static int take_step(struct flow *flow, struct step *step)
{
    const struct instruction *i = &step->i;

    if (i->map == 0)
        return step_one(flow, step);
    if (i->map == 1) {
        if (i->opcode >= 0x80 && i->opcode < 0x90) {
            take_jump(flow, step, step->at + i->size + signed_at(i, i->size - 4, 4));
            return 1;
        }
        if (i->opcode == 0x0B || i->opcode == 0xB9 || i->opcode == 0xFF)
            return 0;
        if (i->opcode == 0x05) {
            flow->memory->system_call = 1;
            forget_values(&step->state, 1 << RAX | 1 << RCX | 1 << 11);
            return 1;
        }
    }
    return compute(flow->memory, step);
}

/* Analyse the present instruction. Returns 0 if control does not continue after it, or if it is refused. */
static int visit(struct flow *flow, struct step *step, int64_t limit)
{
    struct memory *memory = flow->memory;
    int follows;

    step->found = (struct visited){(uint32_t)step->at, step->before, step->call, NO_TARGET, NO_TABLE, 0, 0};
    if (!spend(memory, 1))
        return 0;
    if (!decode(flow->data, flow->size, (uint64_t)step->at, &step->i) || step->at + step->i.size > limit ||
        memory->visited_count >= MAX_INSTRUCTIONS)
        return refuse(memory, step->call);
    step->found.size = (uint8_t)step->i.size;
    if (has_start_in(flow, step->at + 1, step->at + step->i.size)) {
        if (!step->i.lock || find_start(flow, step->at + 1) == NONE)
            return refuse(memory, step->call);
        step->found.size = 1; /* the prefix of an instruction to which other code jumps */
        put_visited(flow, &step->found);
        return 1;
    }
    step->state = memory->states[step->before];
    follows = take_step(flow, step);
    if (memory->refused || memory->exceeded)
        return 0;
    step->found.flags |= (follows ? 0 : ENDS) | (is_call(&step->i) ? CALLS : 0) |
                         (sets_rsp_from_rbp(&step->i) ? RESETS : 0);
    put_visited(flow, &step->found);
    return follows;
}

/* Merge the state of a path with that of a known instruction, which it reaches. Returns 0 if nothing has changed. */
static int join(struct memory *memory, const struct visited *known, struct step *step)
{
    const struct state *old = &memory->states[known->state], *state = &memory->states[step->before];
    struct state found;

    memory->joined = 1;
    if (known->state == step->before || is_equal(old, state))
        return 0;
    if (!merge(old, state, &found))
        return refuse(memory, known->call == NO_CALL ? step->call : known->call);
    if (is_equal(old, &found))
        return 0;
    step->before = put_state(memory, &found);
    step->call = known->call;
    return !memory->exceeded;
}

/* Begin a path. Returns 0 if it begins inside of a known instruction. A jump may skip the prefix lock. */
static int begin_path(struct flow *flow, struct step *step)
{
    struct memory *memory = flow->memory;
    int index = find_covering(flow, step->at);
    const struct visited *covering;

    if (index == NONE || memory->visited[index].at == step->at)
        return 1;
    covering = &memory->visited[index];
    if (covering->at != step->at - 1 || flow->data[covering->at] != 0xF0)
        return refuse(memory, step->call == NO_CALL ? covering->call : step->call);
    step->at--;
    return 1;
}

/* Follow instructions until a jump or return, or until analysed code with the same state is reached. */
static void follow_straight(struct flow *flow, const struct path *path)
{
    struct memory *memory = flow->memory;
    struct step step;
    int64_t limit;

    step.at = path->at;
    step.before = path->state;
    step.call = path->call;
    if (!begin_path(flow, &step))
        return;
    limit = memory->start <= step.at && step.at < memory->limit ? memory->limit : next_start(flow, step.at);
    while (is_inside(flow, step.at)) {
        int index = find_start(flow, step.at);

        if (index != NONE) {
            if (!join(memory, &memory->visited[index], &step))
                return;
        } else if (step.at >= limit)
            return;
        if (!visit(flow, &step, limit))
            return;
        if (step.found.flags & CALLS &&
            (step.call == NO_CALL || !ends_function(flow, step.call) || ends_function(flow, step.at)))
            step.call = (int32_t)step.at;
        step.at += step.found.size;
        if (step.found.size == 1 && step.i.size > 1)
            continue;
        step.before = state_now(memory, &step);
        if (memory->exceeded || !has_cfa(&step.state))
            return;
    }
}

/* Follow all paths from one. Returns 0 if the code is refused. */
static int follow(struct flow *flow, int64_t at, uint32_t state)
{
    struct memory *memory = flow->memory;

    memory->waiting_count = 0;
    put_path(memory, at, state, NO_CALL);
    while (memory->waiting_count && !memory->refused && !memory->exceeded) {
        struct path path = memory->waiting[--memory->waiting_count];
        follow_straight(flow, &path);
    }
    return !memory->refused && !memory->exceeded;
}

/* Find the first gap between known instructions that was not tried. Returns -1 if there is none. */
static int64_t find_gap(struct flow *flow, const int64_t *tried, int count)
{
    struct memory *memory = flow->memory;
    const uint64_t *order = order_visited(memory);

    if (!spend(memory, memory->visited_count))
        return -1;
    for (uint32_t n = 0; n < memory->visited_count; n++) {
        const struct visited *found = &memory->visited[(uint32_t)order[n]];
        int64_t end = (int64_t)found->at + found->size, begin;
        int64_t after = n + 1 < memory->visited_count ? (int64_t)(order[n + 1] >> 32) : memory->limit;
        int known = 0;

        if (found->at < memory->start || end >= after || after > memory->limit)
            continue;
        begin = end_of_padding(flow, end);
        if (begin >= after || may_be_start(flow, begin))
            continue;
        for (int each = 0; each < count; each++)
            known |= tried[each] == begin;
        if (!known)
            return begin;
    }
    return -1;
}

/* Analyse a gap from a given state. Returns 1 if the result is kept. */
static int try_gap(struct flow *flow, int64_t gap, uint32_t state)
{
    struct memory *memory = flow->memory;
    uint32_t count = memory->visited_count, returns = memory->returns, unresolved = memory->unresolved_count;

    if (!spend(memory, count))
        return 0;
    for (uint32_t n = 0; n < count; n++)
        memory->kept[n] = memory->visited[n];
    memory->joined = 0;
    if (follow(flow, gap, state) && (memory->returns > returns || memory->joined))
        return 1;
    memory->refused = 0;
    remove_visited(memory, count);
    for (uint32_t n = 0; n < count; n++)
        memory->visited[n] = memory->kept[n];
    memory->returns = returns;
    memory->unresolved_count = unresolved;
    return 0;
}

/* Analyse code that only indirect jumps with unknown targets reach. */
static void fill_gaps(struct flow *flow)
{
    struct memory *memory = flow->memory;
    int64_t tried[MAX_TRIALS];

    for (int count = 0; count < MAX_TRIALS && memory->unresolved_count && !memory->exceeded; count++) {
        uint32_t states = memory->unresolved_count;

        tried[count] = find_gap(flow, tried, count);
        if (tried[count] < 0)
            return;
        for (uint32_t n = 0; n < states && !memory->exceeded; n++)
            if (try_gap(flow, tried[count], memory->unresolved[n]))
                break;
    }
}

/* Analyse the function once. Returns 0 if it is refused. */
static int try_function(struct flow *flow)
{
    struct memory *memory = flow->memory;
    struct state entry;

    remove_visited(memory, 0);
    memory->table_count = memory->unresolved_count = memory->returns = memory->steps = 0;
    memory->used_open_table = memory->refused = memory->joined = 0;
    memory->system_call = flow->entry == flow->start;
    begin_state(&entry);
    memory->states[0] = entry;
    memory->state_count = 1;
    if (!follow(flow, memory->start, 0))
        return 0;
    fill_gaps(flow);
    return !memory->exceeded;
}

/* Return whether another attempt may succeed. */
static int can_try_again(const struct flow *flow)
{
    struct memory *memory = flow->memory;
    int32_t call = memory->blamed;
    int known = 0;

    if (memory->exceeded)
        return 0;
    for (uint32_t n = 0; n < memory->no_return_count; n++)
        known |= memory->no_return[n] == call;
    if (call != NO_CALL && !known && (memory->sure || ends_function(flow, call)))
        memory->no_return[memory->no_return_count++] = call;
    else if (memory->used_open_table)
        memory->open_tables = 0;
    else
        return 0;
    return 1;
}

static int64_t end_of_first_part(struct flow *flow)
{
    int64_t end = flow->memory->start;

    for (int index; (index = find_start(flow, end)) != NONE;) {
        end += flow->memory->visited[index].size;
        if (find_start(flow, end) == NONE)
            end = end_of_padding(flow, end);
    }
    return end;
}

EXPORT uint64_t flow_memory_size(void)
{
    return sizeof(struct memory);
}

/* Analyse a function. Returns 1 if its code does not contradict itself. */
EXPORT int flow_analyse(struct flow *flow)
{
    struct memory *memory = flow->memory;

    memory->start = (int64_t)(flow->start - flow->base);
    memory->work = 0;
    memory->no_return_count = 0;
    memory->open_tables = 1;
    memory->exceeded = 0;
    if (!is_inside(flow, memory->start))
        return 0;
    memory->sure = (uint8_t)is_function_start(flow, memory->start);
    memory->limit = next_start(flow, memory->start);
    for (int trial = 0; trial < MAX_TRIALS; trial++) {
        if (try_function(flow)) {
            flow->returns = memory->returns;
            flow->end = flow->base + (uint64_t)end_of_first_part(flow);
            flow->asked_count = 0;
            return 1;
        }
        if (!can_try_again(flow))
            break;
    }
    remove_visited(memory, 0);
    return 0;
}

/* Drop what is not proved, by the answers to the calls that were asked for. Returns 0 if `asked` has calls whose answers are needed, and 1 with the result in `runs`. */
EXPORT int flow_prove(struct flow *flow)
{
    if (!prove(flow))
        return 0;
    write_runs(flow);
    remove_visited(flow->memory, 0);
    return 1;
}
