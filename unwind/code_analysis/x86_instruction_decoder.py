"""The decoder of x86-64 instructions for the analysis of code: their fields, and the registers that they write.

Registers are numbers of the instruction set (rax rcx rdx rbx rsp rbp rsi rdi r8 to r15), sets of them are bit masks.
An instruction that is not known here is refused. native/flow/x86.h has the same decoder in C.

Source: Intel SDM volume 2, appendix A (opcode maps) and chapter 2 (prefixes, ModRM, SIB, VEX, EVEX).
"""

from __future__ import annotations

from typing import NamedTuple

from pyprof.model.arch.x86_instructions import instruction_length

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI = range(8)
CALLEE_SAVED = (RBX, RBP, 12, 13, 14, 15)

_PREFIXES = frozenset((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3))


class X86Instruction(NamedTuple):
    """One decoded x86-64 instruction.

    Attributes:
        size: Size in bytes.
        opcode_map: 0 for one-byte opcodes, 1 for those after 0f, 2 after 0f 38, 3 after 0f 3a, -1 for VEX and EVEX.
        opcode: The opcode.
        rex: The REX prefix, 0 if there is none.
        prefixes: The legacy prefixes.
        operand: Offset of the bytes after the opcode, relative to the instruction's start.
        text: The bytes of the instruction.
    """

    size: int
    opcode_map: int
    opcode: int
    rex: int
    prefixes: bytes
    operand: int
    text: bytes

    @property
    def modrm(self) -> int:
        return self.text[self.operand]

    @property
    def reg(self) -> int:
        return (self.modrm >> 3 & 7) + (self.rex << 1 & 8)

    @property
    def rm(self) -> int:
        """The register in the rm field, or -1 for a memory operand."""
        return (self.modrm & 7) + (self.rex << 3 & 8) if self.modrm >= 0xC0 else -1

    def memory(self) -> MemoryOperand | None:
        """Return the memory operand of the instruction if it has a base register, or None for any other operand."""
        mod, low, at = self.modrm >> 6, self.modrm & 7, self.operand + 1
        index, scale = -1, 0
        if mod == 3 or (mod == 0 and low == 5) or 0x67 in self.prefixes:
            return None
        if low == 4:
            sib = self.text[at]
            at += 1
            index, scale = (sib >> 3 & 7) + (self.rex << 2 & 8), sib >> 6
            low = sib & 7
            if mod == 0 and low == 5:
                return None
        if index == RSP:
            index, scale = -1, 0
        return MemoryOperand(low + (self.rex << 3 & 8), index, scale, self.signed(at, (0, 1, 4)[mod]))

    def signed(self, at: int, size: int) -> int:
        return int.from_bytes(self.text[at : at + size], "little", signed=True)


class MemoryOperand(NamedTuple):
    """The memory operand base + (index << scale) + displacement. The index register is -1 if there is none."""

    base: int
    index_register: int
    scale: int
    displacement: int


def decode(code: bytes | memoryview, at: int) -> X86Instruction | None:
    """Return the instruction at an offset of x86-64 code, or None if it is invalid, incomplete or unknown."""
    text = bytes(code[at : at + 16])
    size = instruction_length(text, 0, wide=True)
    if not size:
        return None
    text = text[:size]
    place = 0
    while text[place] in _PREFIXES:
        place += 1
    prefixes, rex = text[:place], 0
    if text[place] & 0xF0 == 0x40:
        rex = text[place]
        place += 1
    opcode, opcode_map = text[place], 0
    place += 1
    if opcode in (0xC4, 0xC5, 0x62):
        return X86Instruction(size, -1, opcode, rex, prefixes, place, text)
    if opcode == 0x0F:
        opcode, opcode_map = text[place], 1
        place += 1
        if opcode in (0x38, 0x3A):
            opcode, opcode_map = text[place], 2 if opcode == 0x38 else 3
            place += 1
    return X86Instruction(size, opcode_map, opcode, rex, prefixes, place, text)


def written_registers(instruction: X86Instruction) -> int | None:
    """Return which general registers an instruction may write, or None if that is unknown.

    The stack pointer's changes by pushes, pops, calls and returns are not among them.
    """
    if instruction.opcode_map == -1:
        return _written_by_vector(instruction)
    return _WRITTEN[instruction.opcode_map](instruction)


def _mask(*registers: int) -> int:
    found = 0
    for register in registers:
        found |= 1 << register if register >= 0 else 0
    return found


def _byte_mask(i: X86Instruction, *registers: int) -> int:
    """Return the bit mask of the registers that an operation on byte registers writes. Without a REX prefix, register
    numbers 4 to 7 mean ah, ch, dh and bh.
    """
    return _mask(*(n - 4 if not i.rex and 4 <= n < 8 else n for n in registers))


def _written_one(i: X86Instruction) -> int | None:
    op = i.opcode
    if op < 0x40:
        low = op & 7
        if low > 5:
            return None
        if op >= 0x38:
            return 0
        if low > 3:
            return _mask(RAX)
        register = i.reg if low & 2 else i.rm
        return _mask(register) if low & 1 else _byte_mask(i, register)
    if op in _KNOWN_WRITES:
        return _KNOWN_WRITES[op]
    if op in (0x8A, 0x80, 0x88, 0x86, 0xC0, 0xD0, 0xD2):
        if op == 0x80:
            return 0 if i.modrm >> 3 & 7 == 7 else _byte_mask(i, i.rm)
        return _byte_mask(i, *((i.reg,) if op == 0x8A else (i.rm, i.reg) if op == 0x86 else (i.rm,)))
    if op in (0x63, 0x69, 0x6B, 0x8B, 0x8D):
        return _mask(i.reg)
    if op in (0x81, 0x83):
        return 0 if i.modrm >> 3 & 7 == 7 else _mask(i.rm)
    if op in (0x89, 0x8C, 0xC1, 0xD1, 0xD3):
        return _mask(i.rm)
    if op == 0x87:
        return _mask(i.rm, i.reg)
    if 0x90 <= op < 0x98 or 0xB0 <= op < 0xC0:
        register = (op & 7) + (i.rex << 3 & 8)
        if op < 0x98:
            return _mask(RAX, register) if register else 0
        return _byte_mask(i, register) if op < 0xB8 else _mask(register)
    return _written_by_group(i)


def _written_by_group(i: X86Instruction) -> int | None:
    """Return the bit mask of the registers that an instruction writes, for one-byte opcodes that share a group selected
    by the ModRM byte.
    """
    op, kind = i.opcode, i.modrm >> 3 & 7
    if op in (0xC6, 0xC7) and kind == 0:
        return _byte_mask(i, i.rm) if op == 0xC6 else _mask(i.rm)
    if op in (0xF6, 0xF7):
        if kind in (2, 3):
            return _byte_mask(i, i.rm) if op == 0xF6 else _mask(i.rm)
        return 0 if kind < 2 else _mask(RAX, RDX)
    if op in (0xFE, 0xFF) and kind < 2:
        return _byte_mask(i, i.rm) if op == 0xFE else _mask(i.rm)
    return None


_STRING = _mask(RCX, RSI, RDI)
_KNOWN_WRITES = {
    **dict.fromkeys((0x84, 0x85, 0x8E, 0x9B, 0x9E, 0xA2, 0xA3, 0xA8, 0xA9, *range(0xD8, 0xDF), 0xE6, 0xE7, 0xEE, 0xEF,
                     0xF5, *range(0xF8, 0xFE)), 0),
    **dict.fromkeys((0x98, 0x9F, 0xA0, 0xA1, 0xD7, 0xDF, 0xE4, 0xE5, 0xEC, 0xED), _mask(RAX)),
    0x99: _mask(RDX),
    **dict.fromkeys((*range(0xA4, 0xA8), 0xAA, 0xAB, 0xAE, 0xAF), _STRING),
    **dict.fromkeys((0xAC, 0xAD), _STRING | _mask(RAX)),
}  # fmt: skip
"""Bit mask of the general registers that an instruction writes, by one-byte opcode, for opcodes with fixed destination
registers. 0 stands for no register.
"""


def _written_two(i: X86Instruction) -> int | None:
    op = i.opcode
    if 0xC8 <= op < 0xD0:
        return _mask((op & 7) + (i.rex << 3 & 8))
    if op in _TWO_KNOWN:
        return _TWO_KNOWN[op]
    if op in _TWO_TO_REG:
        return _mask(i.reg)
    if op == 0xC0:
        return _byte_mask(i, i.rm, i.reg)
    if op == 0xC1:
        return _mask(i.rm, i.reg)
    if op in (0x01, 0xC7):  # xgetbv, rdtscp, cmpxchg16b, rdrand
        return _mask(RAX, RCX, RDX, i.rm)
    if op == 0x7E and 0xF3 in i.prefixes:  # movq between vector registers
        return 0
    if 0x90 <= op < 0xA0:
        return _byte_mask(i, i.rm)
    if op in (0xB0, 0xB1):
        return _mask(RAX) | (_byte_mask(i, i.rm) if op == 0xB0 else _mask(i.rm))
    if op in _TWO_TO_RM:
        return _mask(i.rm)
    return 0 if op in _TWO_NEITHER else None


_TWO_KNOWN = {0x31: _mask(RAX, RDX), 0x77: 0, 0xA2: _mask(RAX, RBX, RCX, RDX)}
_TWO_TO_REG = frozenset((0x02, 0x03, 0x2C, 0x2D, *range(0x40, 0x51), 0xAF, 0xB6, 0xB7, 0xB8, 0xBC, 0xBD, 0xBE, 0xBF,
                         0xC5, 0xD7))  # fmt: skip
_TWO_TO_RM = frozenset((0x00, 0x1E, 0x7E, 0xA4, 0xA5, 0xAB, 0xAC, 0xAD, 0xAE, 0xB3, 0xBA, 0xBB))
_TWO_NEITHER = frozenset((0x0D, *range(0x10, 0x1E), 0x1F, *range(0x28, 0x30), *range(0x51, 0x77), 0x7C, 0x7D, 0x7F,
                          0xA3, 0xC2, 0xC3, 0xC4, 0xC6, *range(0xD0, 0xFF))) - _TWO_TO_REG  # fmt: skip


def _written_three_38(i: X86Instruction) -> int | None:
    if i.opcode < 0xF0:
        return 0
    return _mask(i.reg) if i.opcode in (0xF0, 0xF1, 0xF6) else None


def _written_three_3a(i: X86Instruction) -> int | None:
    if i.opcode in (0x61, 0x63):  # pcmpestri, pcmpistri
        return _mask(RCX)
    return _mask(i.rm) if 0x14 <= i.opcode < 0x18 else 0


def _written_by_vector(i: X86Instruction) -> int | None:
    """Return the registers that an instruction with a VEX or EVEX prefix may write, or None if that is unknown."""
    text, at = i.text, i.operand
    kind = i.opcode
    high = 0 if text[at] & 0x80 else 8
    if kind == 0xC5:
        table, low, at, last = 1, 0, at + 1, text[at]
    else:
        table, low = text[at] & (0x1F if kind == 0xC4 else 0xF), 0 if text[at] & 0x20 else 8
        last = text[at + 1]
        at += 2 if kind == 0xC4 else 3
    vector = ~(last >> 3) & 15
    opcode = text[at]
    if opcode == 0x77 and table == 1:
        return 0
    modrm = text[at + 1]
    reg, rm = (modrm >> 3 & 7) + high, (modrm & 7) + low if modrm >= 0xC0 else -1
    if table == 1:
        if opcode == 0x7E:
            return 0 if last & 3 == 2 else _mask(rm)
        return _mask(reg) if opcode in (0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7) else 0
    if table == 2:
        if opcode < 0xF0:
            return 0
        return {0xF2: _mask(reg), 0xF3: _mask(vector), 0xF5: _mask(reg), 0xF6: _mask(reg, vector),
                0xF7: _mask(reg)}.get(opcode)  # fmt: skip
    if table == 3:
        if opcode in (0x61, 0x63):
            return _mask(RCX)
        return _mask(reg) if opcode == 0xF0 else _mask(rm) if 0x14 <= opcode < 0x18 else 0
    if table in (5, 6) and kind == 0x62:
        return _mask(reg) if opcode in (0x2C, 0x2D, 0x78, 0x79) else _mask(rm) if opcode == 0x7E else 0
    return None


_WRITTEN = {0: _written_one, 1: _written_two, 2: _written_three_38, 3: _written_three_3a}
