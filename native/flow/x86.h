/* SPDX-License-Identifier: MIT */
/* Decoder of x86-64 instructions: their fields, and the general registers that they write.
 *
 * unwind/code_analysis/x86_instruction_decoder.py and model/x86_length.py are the specification. Source: Intel SDM volume 2,
 * appendix A (opcode maps) and chapter 2 (prefixes, ModRM, SIB, VEX, EVEX).
 */
#ifndef X86_H
#define X86_H

#include <stdint.h>

enum { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, REGISTERS = 16, LONGEST = 15, TEXT = 48, NONE = -1 };

enum { VECTOR_MAP = 4 }; /* map of instructions with a VEX or EVEX prefix */

struct instruction {
    uint8_t text[TEXT]; /* its bytes, and zeros, so that a truncated instruction can be decoded */
    int size, map, opcode, rex, operand;
    int narrow, lock, repeat, address_size; /* has 66; begins with f0; has f3; has 67 */
    int odd_prefix;                         /* has others than 66 and 2e */
};

struct memory_operand {
    int base, index, scale;
    int32_t displacement;
};

static inline int bit_of(const uint32_t set[8], int number)
{
    return set[number >> 5] >> (number & 31) & 1;
}

static inline int modrm_of(const struct instruction *i)
{
    return i->text[i->operand];
}

static inline int kind_of(const struct instruction *i)
{
    return modrm_of(i) >> 3 & 7;
}

static inline int reg_of(const struct instruction *i)
{
    return (modrm_of(i) >> 3 & 7) + (i->rex << 1 & 8);
}

static inline int rm_of(const struct instruction *i)
{
    return modrm_of(i) >= 0xC0 ? (modrm_of(i) & 7) + (i->rex << 3 & 8) : NONE;
}

static inline int64_t signed_at(const struct instruction *i, int at, int size)
{
    uint32_t value = 0;

    if (size == 1)
        return (int8_t)i->text[at];
    for (int n = 0; n < size; n++)
        value |= (uint32_t)i->text[at + n] << 8 * n;
    return size == 2 ? (int16_t)value : (int32_t)value;
}

/* Opcodes of the first map by what follows them. Opcodes below 40 follow one scheme. */
static const uint32_t MODRM_ONE[8] = {0x0F0F0F0F, 0x0F0F0F0F, 0, 0x00000A08, 0x0000FFFF, 0, 0xFF0F00C3, 0xC0C00000};
static const uint32_t BYTE_ONE[8] = {0x10101010, 0x10101010, 0, 0xFFFF0C00, 0x00000009, 0x00FF0100, 0x00002043,
                                     0x000008FF};
static const uint32_t WORD_ONE[8] = {0x20202020, 0x20202020, 0, 0x00000300, 0x00000002, 0xFF000200, 0x00000080,
                                     0x00000300};
static const uint32_t PLAIN_ONE[8] = {0, 0, 0xFFFF0000, 0, 0xFBFF0000, 0x0000FCF0, 0x00001208, 0x3F30F000};

static inline int is_prefix(int byte)
{
    return byte == 0x26 || byte == 0x2E || byte == 0x36 || byte == 0x3E || (byte >= 0x64 && byte <= 0x67) ||
           byte == 0xF0 || byte == 0xF2 || byte == 0xF3;
}

/* Return the end of a ModRM byte with its SIB byte and displacement. */
static inline int after_modrm(const uint8_t *text, int at)
{
    int mod = text[at] >> 6, rm = text[at] & 7;

    at++;
    if (mod == 3)
        return at;
    if (rm == 4) {
        rm = text[at++] & 7;
        if (mod == 0 && rm == 5)
            return at + 4;
    } else if (mod == 0 && rm == 5)
        return at + 4;
    return at + (mod == 2 ? 4 : mod);
}

static inline int has_byte_two(int opcode)
{
    return (opcode >= 0x70 && opcode < 0x74) || opcode == 0xA4 || opcode == 0xAC || opcode == 0xBA || opcode == 0xC2 ||
           (opcode >= 0xC4 && opcode < 0xC7);
}

/* Return the end of an instruction with a VEX or EVEX prefix. */
static inline int end_of_vector(const uint8_t *text, int at)
{
    int kind = text[at], map = kind == 0xC5 ? 1 : text[at + 1] & (kind == 0x62 ? 7 : 0x1F), opcode;

    at += kind == 0xC5 ? 2 : kind == 0xC4 ? 3 : 4;
    opcode = text[at];
    if (opcode == 0x77 && map == 1)
        return at + 1;
    return after_modrm(text, at + 1) + (map == 3 || (map == 1 && has_byte_two(opcode)));
}

/* Return the end of an instruction whose opcode follows 0f. `at` is the offset of that opcode. */
static inline int end_of_two(struct instruction *i, int at)
{
    int opcode = i->text[at];

    i->map = 1;
    if (opcode == 0x38 || opcode == 0x3A) {
        i->map = opcode == 0x38 ? 2 : 3;
        i->opcode = i->text[at + 1];
        i->operand = at + 2;
        return after_modrm(i->text, at + 2) + (opcode == 0x3A);
    }
    i->opcode = opcode;
    i->operand = at + 1;
    if (opcode == 0x05 || opcode == 0x0B || opcode == 0x31 || opcode == 0x34 || opcode == 0x77 ||
        (opcode >= 0xA0 && opcode < 0xA3) || opcode == 0xA8 || opcode == 0xA9 || (opcode >= 0xC8 && opcode < 0xD0))
        return at + 1;
    if (opcode >= 0x80 && opcode < 0x90)
        return at + 5;
    return after_modrm(i->text, at + 1) + has_byte_two(opcode);
}

/* Return the end of an instruction with a one-byte opcode at `at`, or 0 if that is unknown. */
static inline int end_of_one(struct instruction *i, int at, int narrow)
{
    int opcode = i->text[at++], kind;

    i->map = 0;
    i->opcode = opcode;
    i->operand = at;
    if (bit_of(MODRM_ONE, opcode)) {
        kind = i->text[at] >> 3 & 7;
        at = after_modrm(i->text, at);
        if ((opcode == 0xF6 || opcode == 0xF7) && kind < 2)
            return at + (opcode == 0xF6 ? 1 : narrow ? 2 : 4);
    } else if (opcode == 0xC2 || opcode == 0xCA)
        return at + 2;
    else if (opcode >= 0xA0 && opcode < 0xA4)
        return at + 8;
    else if (!bit_of(BYTE_ONE, opcode) && !bit_of(WORD_ONE, opcode) && !bit_of(PLAIN_ONE, opcode))
        return 0;
    if (bit_of(BYTE_ONE, opcode))
        return at + 1;
    if (!bit_of(WORD_ONE, opcode))
        return at;
    if (i->rex & 8 && opcode >= 0xB8 && opcode < 0xC0)
        return at + 8;
    return at + (narrow && opcode != 0xE8 && opcode != 0xE9 ? 2 : 4);
}

/* Decode the instruction at an offset of code. Returns 0 if it is invalid, incomplete or unknown. */
static inline int decode(const uint8_t *data, uint64_t size, uint64_t at, struct instruction *i)
{
    int place = 0, end, narrow = 0;
    uint64_t room = size - at < 16 ? size - at : 16;

    __builtin_memset(i, 0, sizeof(*i));
    if (room == 16)
        __builtin_memcpy(i->text, data + at, 16);
    else
        for (uint64_t n = 0; n < room; n++)
            i->text[n] = data[at + n];
    i->lock = i->text[0] == 0xF0;
    for (; is_prefix(i->text[place]); place++) {
        i->narrow |= i->text[place] == 0x66;
        i->repeat |= i->text[place] == 0xF3;
        i->address_size |= i->text[place] == 0x67;
        i->odd_prefix |= i->text[place] != 0x66 && i->text[place] != 0x2E;
    }
    if ((i->text[place] & 0xF0) == 0x40)
        i->rex = i->text[place++];
    narrow = i->narrow && !(i->rex & 8);
    if (i->text[place] == 0xC4 || i->text[place] == 0xC5 || i->text[place] == 0x62) {
        i->map = VECTOR_MAP;
        i->opcode = i->text[place];
        i->operand = place + 1;
        end = end_of_vector(i->text, place);
    } else if (i->text[place] == 0x0F)
        end = end_of_two(i, place + 1);
    else
        end = end_of_one(i, place, narrow);
    i->size = end;
    return end > 0 && end <= LONGEST && (uint64_t)end <= room;
}

/* Find the base, index and displacement of a memory operand. Returns 0 if it has no base register. */
static inline int memory_of(const struct instruction *i, struct memory_operand *memory)
{
    int modrm = modrm_of(i), mod = modrm >> 6, low = modrm & 7, at = i->operand + 1;

    memory->index = NONE;
    memory->scale = 0;
    if (mod == 3 || (mod == 0 && low == 5) || i->address_size)
        return 0;
    if (low == 4) {
        int sib = i->text[at++];

        memory->index = (sib >> 3 & 7) + (i->rex << 2 & 8);
        memory->scale = sib >> 6;
        low = sib & 7;
        if (mod == 0 && low == 5)
            return 0;
    }
    if (memory->index == RSP) {
        memory->index = NONE;
        memory->scale = 0;
    }
    memory->base = low + (i->rex << 3 & 8);
    memory->displacement = mod == 0 ? 0 : (int32_t)signed_at(i, at, mod == 1 ? 1 : 4);
    return 1;
}

enum { UNKNOWN_WRITE = -1 };

static inline int mask_of(int reg)
{
    return reg >= 0 ? 1 << reg : 0;
}

/* Return the mask of a register of an operation on bytes. Without REX, 4 to 7 are ah, ch, dh and bh. */
static inline int byte_mask(const struct instruction *i, int reg)
{
    return mask_of(!i->rex && reg >= 4 && reg < 8 ? reg - 4 : reg);
}

/* Return the registers that a one-byte opcode writes whose operation stands in the ModRM byte. */
static inline int written_by_group(const struct instruction *i)
{
    int op = i->opcode, kind = kind_of(i), rm = rm_of(i);

    if ((op == 0xC6 || op == 0xC7) && kind == 0)
        return op == 0xC6 ? byte_mask(i, rm) : mask_of(rm);
    if (op == 0xF6 || op == 0xF7) {
        if (kind == 2 || kind == 3)
            return op == 0xF6 ? byte_mask(i, rm) : mask_of(rm);
        return kind < 2 ? 0 : 1 << RAX | 1 << RDX;
    }
    if ((op == 0xFE || op == 0xFF) && kind < 2)
        return op == 0xFE ? byte_mask(i, rm) : mask_of(rm);
    return UNKNOWN_WRITE;
}

/* Return the registers that an opcode below 40 writes. */
static inline int written_by_arithmetic(const struct instruction *i)
{
    int low = i->opcode & 7, reg;

    if (low > 5)
        return UNKNOWN_WRITE;
    if (i->opcode >= 0x38)
        return 0;
    if (low > 3)
        return 1 << RAX;
    reg = low & 2 ? reg_of(i) : rm_of(i);
    return low & 1 ? mask_of(reg) : byte_mask(i, reg);
}

static inline int written_by_one(const struct instruction *i)
{
    enum { STRING = 1 << RCX | 1 << RSI | 1 << RDI };
    int op = i->opcode, reg = (op & 7) + (i->rex << 3 & 8);

    if (op < 0x40)
        return written_by_arithmetic(i);
    switch (op) {
    case 0x84: case 0x85: case 0x8E: case 0x9B: case 0x9E: case 0xA2: case 0xA3: case 0xA8: case 0xA9:
    case 0xD8 ... 0xDE: case 0xE6: case 0xE7: case 0xEE: case 0xEF: case 0xF5: case 0xF8 ... 0xFD:
        return 0;
    case 0x98: case 0x9F: case 0xA0: case 0xA1: case 0xD7: case 0xDF: case 0xE4: case 0xE5: case 0xEC: case 0xED:
        return 1 << RAX;
    case 0x99:
        return 1 << RDX;
    case 0xA4 ... 0xA7: case 0xAA: case 0xAB: case 0xAE: case 0xAF:
        return STRING;
    case 0xAC: case 0xAD:
        return STRING | 1 << RAX;
    case 0x80:
        return kind_of(i) == 7 ? 0 : byte_mask(i, rm_of(i));
    case 0x81: case 0x83:
        return kind_of(i) == 7 ? 0 : mask_of(rm_of(i));
    case 0x8A:
        return byte_mask(i, reg_of(i));
    case 0x86:
        return byte_mask(i, rm_of(i)) | byte_mask(i, reg_of(i));
    case 0x88: case 0xC0: case 0xD0: case 0xD2:
        return byte_mask(i, rm_of(i));
    case 0x63: case 0x69: case 0x6B: case 0x8B: case 0x8D:
        return mask_of(reg_of(i));
    case 0x89: case 0x8C: case 0xC1: case 0xD1: case 0xD3:
        return mask_of(rm_of(i));
    case 0x87:
        return mask_of(rm_of(i)) | mask_of(reg_of(i));
    case 0x90 ... 0x97:
        return reg ? 1 << RAX | 1 << reg : 0;
    case 0xB0 ... 0xB7:
        return byte_mask(i, reg);
    case 0xB8 ... 0xBF:
        return 1 << reg;
    default:
        return written_by_group(i);
    }
}

static inline int written_by_two(const struct instruction *i)
{
    int op = i->opcode, reg, rm;

    if (op >= 0xC8 && op < 0xD0)
        return 1 << ((op & 7) + (i->rex << 3 & 8));
    if (op == 0x31)
        return 1 << RAX | 1 << RDX;
    if (op == 0x77)
        return 0;
    if (op == 0xA2)
        return 1 << RAX | 1 << RBX | 1 << RCX | 1 << RDX;
    reg = reg_of(i);
    rm = rm_of(i);
    switch (op) {
    case 0x02: case 0x03: case 0x2C: case 0x2D: case 0x40 ... 0x50: case 0xAF: case 0xB6: case 0xB7: case 0xB8:
    case 0xBC ... 0xBF: case 0xC5: case 0xD7:
        return mask_of(reg);
    case 0xC0:
        return byte_mask(i, rm) | byte_mask(i, reg);
    case 0xC1:
        return mask_of(rm) | mask_of(reg);
    case 0x01: case 0xC7:
        return 1 << RAX | 1 << RCX | 1 << RDX | mask_of(rm);
    case 0x7E:
        return i->repeat ? 0 : mask_of(rm);
    case 0x90 ... 0x9F:
        return byte_mask(i, rm);
    case 0xB0:
        return 1 << RAX | byte_mask(i, rm);
    case 0xB1:
        return 1 << RAX | mask_of(rm);
    case 0x00: case 0x1E: case 0xA4: case 0xA5: case 0xAB: case 0xAC: case 0xAD: case 0xAE: case 0xB3: case 0xBA:
    case 0xBB:
        return mask_of(rm);
    case 0x0D: case 0x10 ... 0x1D: case 0x1F: case 0x28 ... 0x2B: case 0x2E: case 0x2F: case 0x51 ... 0x76: case 0x7C:
    case 0x7D: case 0x7F: case 0xA3: case 0xC2: case 0xC3: case 0xC4: case 0xC6: case 0xD0 ... 0xD6:
    case 0xD8 ... 0xFE:
        return 0;
    default:
        return UNKNOWN_WRITE;
    }
}

/* Return the registers that a vector instruction of the second map writes. */
static inline int written_by_second(int opcode, int reg, int vector)
{
    if (opcode < 0xF0)
        return 0;
    switch (opcode) {
    case 0xF2: case 0xF5: case 0xF7:
        return mask_of(reg);
    case 0xF3:
        return mask_of(vector);
    case 0xF6:
        return mask_of(reg) | mask_of(vector);
    default:
        return UNKNOWN_WRITE;
    }
}

static inline int written_by_vector(const struct instruction *i)
{
    const uint8_t *text = i->text;
    int at = i->operand, high = text[at] & 0x80 ? 0 : 8, low = 0, map = 1, last, opcode, modrm, reg, rm;

    if (i->opcode == 0xC5)
        last = text[at++];
    else {
        map = text[at] & (i->opcode == 0xC4 ? 0x1F : 0xF);
        low = text[at] & 0x20 ? 0 : 8;
        last = text[at + 1];
        at += i->opcode == 0xC4 ? 2 : 3;
    }
    opcode = text[at];
    if (opcode == 0x77 && map == 1)
        return 0;
    modrm = text[at + 1];
    reg = (modrm >> 3 & 7) + high;
    rm = modrm >= 0xC0 ? (modrm & 7) + low : NONE;
    if (map == 1) {
        if (opcode == 0x7E)
            return (last & 3) == 2 ? 0 : mask_of(rm);
        return opcode == 0x2C || opcode == 0x2D || opcode == 0x50 || opcode == 0x78 || opcode == 0x79 ||
                       opcode == 0x93 || opcode == 0xC5 || opcode == 0xD7
                   ? mask_of(reg)
                   : 0;
    }
    if (map == 2)
        return written_by_second(opcode, reg, ~(last >> 3) & 15);
    if (map == 3) {
        if (opcode == 0x61 || opcode == 0x63)
            return 1 << RCX;
        return opcode == 0xF0 ? mask_of(reg) : opcode >= 0x14 && opcode < 0x18 ? mask_of(rm) : 0;
    }
    if ((map == 5 || map == 6) && i->opcode == 0x62) {
        if (opcode == 0x2C || opcode == 0x2D || opcode == 0x78 || opcode == 0x79)
            return mask_of(reg);
        return opcode == 0x7E ? mask_of(rm) : 0;
    }
    return UNKNOWN_WRITE;
}

/* Return the mask of the general registers that an instruction may write, or UNKNOWN_WRITE. The stack pointer's changes
 * by pushes, pops, calls and returns are not among them. */
static inline int written_registers(const struct instruction *i)
{
    switch (i->map) {
    case 0:
        return written_by_one(i);
    case 1:
        return written_by_two(i);
    case 2:
        if (i->opcode < 0xF0)
            return 0;
        return i->opcode == 0xF0 || i->opcode == 0xF1 || i->opcode == 0xF6 ? mask_of(reg_of(i)) : UNKNOWN_WRITE;
    case 3:
        if (i->opcode == 0x61 || i->opcode == 0x63)
            return 1 << RCX;
        return i->opcode >= 0x14 && i->opcode < 0x18 ? mask_of(rm_of(i)) : 0;
    default:
        return written_by_vector(i);
    }
}

#endif
