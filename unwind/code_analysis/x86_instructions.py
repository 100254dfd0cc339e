"""Effects of x86-64 instructions on the stack pointer and on callee-saved registers.

Most instructions have none. neutral_pattern() matches a run of them at the speed of Python's regular expressions. The
caller decodes the others one by one by decode() and written_registers(). An instruction that neither knows is refused.

Registers are numbers of the instruction set (rax rcx rdx rbx rsp rbp rsi rdi r8 to r15). Source: Intel SDM volume 2,
appendix A (opcode maps) and chapter 2 (prefixes, ModRM, SIB, VEX, EVEX).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from pyprof.model.arch.x86_instructions import instruction_length

RSP, RBP = 4, 5
CALLEE_SAVED = (3, RBP, 12, 13, 14, 15)

_ALL = range(8)
_FREE = {0: (0, 1, 2, 3, 6, 7), 1: tuple(range(8))}
"""Low three bits of the registers other than rsp and rbp, by the REX bit that extends the number."""

_NO_66 = rb"[\x26\x2e\x36\x3e\x64\x65\xf0\xf2\xf3]"
_REX = {(r, b): bytes(0x40 + w + x + 4 * r + b for w in (0, 8) for x in (0, 2)) for r in (0, 1) for b in (0, 1)}


def _class(values: Iterable[int], follow: bool = False) -> bytes:
    """Return a pattern of one byte that is one of some values. With `follow`, the byte is not consumed."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    # parsing an escape of four characters takes several times as long as the byte itself
    spans = (re.escape(bytes(run[:1])) + (b"-" + re.escape(bytes(run[1:])) if run[0] < run[1] else b"") for run in runs)
    found = b"[" + b"".join(spans) + b"]"
    return b"(?=" + found + b")" if follow else found


def _modrm(regs: Iterable[int], rms: Iterable[int]) -> bytes:
    """Return a pattern of a ModRM byte with its SIB byte and displacement.

    Args:
        regs: Allowed values of its reg field.
        rms: Allowed values of its rm field where that is a register. Memory operands are not restricted.
    """
    regs = tuple(regs)

    def of(mod: int, rms: Iterable[int]) -> list[int]:
        return [mod << 6 | reg << 3 | rm for reg in regs for rm in rms]

    no_sib = (0, 1, 2, 3, 5, 6, 7)
    short = _class((*of(3, rms), *of(0, (0, 1, 2, 3, 6, 7))))
    sib = (
        _class(of(0, (4,)))
        + b"(?:"
        + _class(n for n in range(256) if n & 7 != 5)
        + b"|"
        + (_class(n for n in range(256) if n & 7 == 5) + b"....)")
    )
    parts = (
        short,
        _class(of(1, no_sib)) + b".",
        _class(of(1, (4,))) + b"..",
        _class((*of(2, no_sib), *of(0, (5,)))) + b"....",
        _class(of(2, (4,))) + b".....",
        sib,
    )
    return b"(?:" + b"|".join(parts) + b")"


def _body(r: int, b: int) -> bytes:
    """Return a pattern of the opcodes and operands of neutral instructions, without those of _wide_body().

    Args:
        r: REX.R.
        b: REX.B.
    """
    reg, rm, alu = _FREE[r], _FREE[b], range(0, 0x38, 8)
    to_rm, to_reg, reads = _modrm(_ALL, rm), _modrm(reg, _ALL), _modrm(_ALL, _ALL)
    vector = (
        *range(0x10, 0x18), 0x28, 0x29, 0x2A, 0x2B, 0x2E, 0x2F, *range(0x51, 0x70), 0x74, 0x75, 0x76, 0x7C, 0x7D, 0x7F,
        *(n for n in range(0xD0, 0xFF) if n != 0xD7),
    )  # fmt: skip
    parts = (
        _either(
            (*(n + 2 for n in alu), *(n + 3 for n in alu), 0x63, 0x8A, 0x8B, 0x8D),
            (*range(0x40, 0x50), 0x2C, 0x2D, 0x50, 0xAF, 0xB6, 0xB7, 0xB8, 0xBC, 0xBD, 0xBE, 0xBF, 0xD7),
        )
        + to_reg,
        b"\\x89(?:(?=[\\xc0-\\xff])"
        + to_rm
        + b"|"
        + _class((mod << 6 | n << 3 | m for mod in range(3) for n in _ALL for m in (0, 1, 2, 3, 6, 7)), follow=True)
        + reads
        + b"|"
        + _modrm(reg if not r else (0, 1, 2, 3), ())
        + b")",
        _either(
            (*alu, *(n + 1 for n in alu), 0x88, *range(0xD0, 0xD4)),
            (0x1E, 0x7E, *range(0x90, 0xA0), 0xAB, 0xB3, 0xBB, 0xA5, 0xAD, 0xAE, 0xB0, 0xB1),
        )
        + to_rm,
        _either(
            (0x38, 0x39, 0x3A, 0x3B, 0x84, 0x85, *range(0xD8, 0xE0)),
            (*vector, 0x0D, *range(0x18, 0x1E), 0x1F, 0xA3, 0xC3),
            b"\\x0f\\x38" + _class(range(0xF0)),
        )
        + reads,
        b"[\\x80\\x83](?:" + _modrm((7,), _ALL) + b"|" + _modrm(range(7), rm) + b").",
        _class(0x90 + n for n in rm),
        _either((0xC0, 0xC1), (0xA4, 0xAC, 0xBA)) + to_rm + b".",
        b"(?:\\x0f[\\x70-\\x73\\xc2\\xc4\\xc6]|\\x0f\\x3a" + _class(_THIRD_MAP) + b")" + reads + b".",
        b"(?:\\x6b|\\x0f\\xc5)" + to_reg + b".",
        b"\\xc6" + _modrm((0,), rm) + b".",
        b"\\xf6" + _modrm((0, 1), _ALL) + b".",
        b"[\\xf6\\xf7]" + _modrm((2, 3), rm),
        b"[\\xf6\\xf7]" + _modrm(range(4, 8), _ALL),
        b"[\\xfe\\xff]" + _modrm((0, 1), rm),
        b"(?:[\\x86\\x87]|\\x0f[\\xc0\\xc1])" + _modrm(reg, rm),
        _class((*(n + 4 for n in range(0, 0x40, 8)), 0xA8, *(0xB0 + n for n in rm))) + b".",
        _class((0x98, 0x99, *range(0xA4, 0xA8), *range(0xAA, 0xB0), 0xF5, 0xF8, 0xF9, 0xFC, 0xFD)),
        b"\\x0f" + _class((*(0xC8 + n for n in rm), 0x31, 0x77)),
    )
    return b"(?:" + b"|".join(parts) + b")"


_THIRD_MAP = tuple(n for n in range(0xE0) if not 0x14 <= n < 0x18)


def _either(one: Iterable[int], two: Iterable[int], more: bytes = b"") -> bytes:
    """Return a pattern of opcodes of the first map, of the second map, or another pattern."""
    return b"(?:" + _class(one) + b"|\\x0f" + _class(two) + (b"|" + more if more else b"") + b")"


def _wide_body(r: int, b: int) -> bytes:
    """Return a pattern of neutral instructions with an immediate of four bytes, which the prefix 66 makes two bytes."""
    rm = _FREE[b]
    parts = (
        b"\\x81(?:" + _modrm((7,), _ALL) + b"|" + _modrm(range(7), rm) + b")....",
        b"\\xc7" + _modrm((0,), rm) + b"....",
        _class((*(n + 5 for n in range(0, 0x40, 8)), 0xA9)) + b"....",
        b"\\xf7" + _modrm((0, 1), _ALL) + b"....",
        b"\\x69" + _modrm(_FREE[r], _ALL) + b"....",
    )
    return b"(?:" + b"|".join(parts) + b")"


def _with_rex(body: Callable[[int, int], bytes]) -> bytes:
    groups = [_class(_REX[r, b]) + body(r, b) for r, b in ((1, 0), (0, 1), (1, 1))]
    return b"(?:" + b"|".join((_class(_REX[0, 0]) + b"?+" + body(0, 0), *groups)) + b")"


def _vex() -> bytes:
    immediate = (0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC6)
    general = (0x2C, 0x2D, 0x50, 0x77, 0x78, 0x79, 0x7E, 0x92, 0x93, 0xC5, 0xD7)
    first, second = _class(set(range(256)) - {*immediate, *general}), _class(range(0xF0))
    short, third, reads = _class(immediate), _class(_THIRD_MAP), _modrm(_ALL, _ALL)

    def of(opcodes: dict[int, bytes], c5: bytes) -> bytes:
        three = (_class(n for n in range(256) if n & 0x1F == m) + b"." + body for m, body in opcodes.items())
        evex = (_class(n for n in range(256) if n & 0xF == m) + b".." + body for m, body in opcodes.items())
        return b"(?:\\xc5." + c5 + b"|\\xc4(?:" + b"|".join(three) + b")|\\x62(?:" + b"|".join(evex) + b"))" + reads

    return b"\\xc5\\xf8\\x77|" + of({1: first, 2: second}, first) + b"|" + of({1: short, 3: third}, short) + b"."


@cache
def neutral_pattern() -> re.Pattern[bytes]:
    """Return a pattern of a run of x86-64 instructions that only compute.

    They do not jump, do not write rsp or rbp, and do not store a callee-saved register in the frame. The result is
    cached because compiling the pattern takes a fraction of a second.
    """
    wide = (
        b"[\\x48\\x4a]"
        + _class(0xB8 + n for n in _FREE[0])
        + b"........|[\\x49\\x4b]"
        + (_class(0xB8 + n for n in _FREE[1]) + b"........")
    )
    narrow = _class(0xB8 + n for n in _FREE[0]) + b"....|[\\x41\\x43]" + _class(0xB8 + n for n in _FREE[1]) + b"...."
    short = b"[\\x26\\x2e\\x36\\x3e\\x64\\x65\\x66\\xf0\\xf2\\xf3]*+" + _with_rex(_body)
    plain = _NO_66 + b"*+" + _with_rex(_wide_body)
    return re.compile(b"(?>" + b"|".join((short, narrow, wide, plain, _vex())) + b")*+", re.DOTALL)


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

    def memory(self) -> tuple[int, int] | None:
        """Return (base register, displacement) of a memory operand without an index, or None for others."""
        mod, low, at = self.modrm >> 6, self.modrm & 7, self.operand + 1
        if mod == 3 or (mod == 0 and low == 5):
            return None
        if low == 4:
            sib = self.text[at]
            at += 1
            if sib >> 3 & 7 != 4 or self.rex & 2:
                return None
            low = sib & 7
            if mod == 0 and low == 5:
                return None
        return low + (self.rex << 3 & 8), self.signed(at, (0, 1, 4)[mod])

    def signed(self, at: int, size: int) -> int:
        return int.from_bytes(self.text[at : at + size], "little", signed=True)


_PREFIXES = frozenset((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3))


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


def written_registers(instruction: X86Instruction) -> tuple[int, ...] | None:
    """Return which of rsp and rbp an instruction may write, or None if that is unknown.

    Pushes, pops, calls, jumps and returns are not known here.
    """
    if instruction.opcode_map == -1:
        return _written_by_vector(instruction)
    found = _WRITTEN[instruction.opcode_map](instruction)
    if found is None:
        return None
    if not instruction.rex and instruction.opcode_map == 0 and _is_byte_operation(instruction.opcode):
        found = tuple(n - 4 if 4 <= n < 8 else n for n in found)  # ah, ch, dh, bh
    return tuple(n for n in found if n in _KEPT)


_KEPT = frozenset((RSP, RBP))


def _is_byte_operation(opcode: int) -> bool:
    return (opcode < 0x40 and not opcode & 1) or opcode in (0x80, 0x84, 0x86, 0x88, 0x8A, 0xC0, 0xC6, 0xD0, 0xD2, 0xF6,
                                                             0xFE) or 0xB0 <= opcode < 0xB8  # fmt: skip


def _registers(*numbers: int) -> tuple[int, ...]:
    return tuple(n for n in numbers if n >= 0)


def _written_one(i: X86Instruction) -> tuple[int, ...] | None:
    op = i.opcode
    if op < 0x40:
        low = op & 7
        if low > 5:
            return None
        return () if op >= 0x38 or low > 3 else _registers(i.reg if low & 2 else i.rm)
    if op in (0x63, 0x69, 0x6B, 0x8A, 0x8B, 0x8D):
        return (i.reg,)
    if op in (0x80, 0x81, 0x83):
        return () if i.modrm >> 3 & 7 == 7 else _registers(i.rm)
    if op in (0x88, 0x89, 0x8C, 0xC0, 0xC1, 0xD0, 0xD1, 0xD2, 0xD3):
        return _registers(i.rm)
    if op in (0x86, 0x87):
        return _registers(i.rm, i.reg)
    if 0x90 <= op < 0x98 or 0xB0 <= op < 0xC0:
        return ((op & 7) + (i.rex << 3 & 8),)
    if op in (0xC6, 0xC7):
        return _registers(i.rm) if i.modrm >> 3 & 7 == 0 else None
    if op in (0xF6, 0xF7):
        return _registers(i.rm) if i.modrm >> 3 & 7 in (2, 3) else ()
    if op in (0xFE, 0xFF):
        return _registers(i.rm) if i.modrm >> 3 & 7 < 2 else None
    if op in _NO_RESULT:
        return ()
    return None


_NO_RESULT = frozenset((0x84, 0x85, 0x8E, 0x98, 0x99, 0x9B, 0x9E, 0x9F, *range(0xA0, 0xB0), *range(0xD7, 0xE0), 0xEC,
                        0xED, 0xEE, 0xEF, 0xE4, 0xE5, 0xE6, 0xE7, 0xF5, *range(0xF8, 0xFE)))  # fmt: skip


def _written_two(i: X86Instruction) -> tuple[int, ...] | None:
    op = i.opcode
    if op in (0x05, 0x31, 0x77, 0xA2):
        return ()
    if 0xC8 <= op < 0xD0:
        return ((op & 7) + (i.rex << 3 & 8),)
    if op in _TWO_TO_REG:
        return (i.reg,)
    if op in (0xC0, 0xC1):
        return _registers(i.rm, i.reg)
    if op in _TWO_TO_RM:
        return _registers(i.rm)
    if op in _TWO_NEITHER:
        return ()
    return None


_TWO_TO_REG = frozenset((0x02, 0x03, 0x2C, 0x2D, *range(0x40, 0x51), 0xAF, 0xB6, 0xB7, 0xB8, 0xBC, 0xBD, 0xBE, 0xBF,
                         0xC5, 0xD7))  # fmt: skip
_TWO_TO_RM = frozenset((0x00, 0x01, 0x1E, 0x7E, *range(0x90, 0xA0), 0xA4, 0xA5, 0xAB, 0xAC, 0xAD, 0xAE, 0xB0, 0xB1,
                        0xB3, 0xBA, 0xBB, 0xC7))  # fmt: skip
_TWO_NEITHER = frozenset((0x0D, *range(0x10, 0x1E), 0x1F, *range(0x28, 0x30), *range(0x51, 0x78), 0x7C, 0x7D, 0x7F,
                          0xA3, 0xC2, 0xC3, 0xC4, 0xC6, *range(0xD0, 0xFF))) - _TWO_TO_REG  # fmt: skip


def _written_three_38(i: X86Instruction) -> tuple[int, ...] | None:
    if i.opcode < 0xF0:
        return ()
    return (i.reg,) if i.opcode in (0xF0, 0xF1, 0xF6) else None


def _written_three_3a(i: X86Instruction) -> tuple[int, ...] | None:
    return _registers(i.rm) if 0x14 <= i.opcode < 0x18 else ()


def _written_by_vector(i: X86Instruction) -> tuple[int, ...] | None:
    """Return the kept registers that an instruction with a VEX or EVEX prefix may write, or None if that is unknown."""
    text, at = i.text, i.operand
    kind = i.opcode
    high = 0 if text[at] & 0x80 else 8
    if kind == 0xC5:
        table, low, at, vector = 1, 0, at + 1, ~(text[at] >> 3) & 15
    else:
        table, low = text[at] & (0x1F if kind == 0xC4 else 0xF), 0 if text[at] & 0x20 else 8
        vector = ~(text[at + 1] >> 3) & 15
        at += 2 if kind == 0xC4 else 3
    opcode = text[at]
    if opcode == 0x77 and table == 1:
        return ()
    modrm = text[at + 1]
    reg, rm = (modrm >> 3 & 7) + high, (modrm & 7) + low if modrm >= 0xC0 else -1
    written: tuple[int, ...]
    if table == 1:
        written = (reg,) if opcode in (0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7) else ()
        written = (rm,) if opcode == 0x7E else written
    elif table == 2:
        written = {0xF2: (reg,), 0xF3: (vector,), 0xF5: (reg,), 0xF6: (reg, vector), 0xF7: (reg,)}.get(opcode, ())
        if opcode >= 0xF0 and not written:
            return None
    elif table == 3:
        written = (reg,) if opcode == 0xF0 else (rm,) if 0x14 <= opcode < 0x18 else ()
    elif table in (5, 6) and kind == 0x62:
        written = (reg,) if opcode in (0x2C, 0x2D, 0x78, 0x79) else (rm,) if opcode == 0x7E else ()
    else:
        return None
    return tuple(n for n in written if n in _KEPT)


_WRITTEN = {0: _written_one, 1: _written_two, 2: _written_three_38, 3: _written_three_3a}
