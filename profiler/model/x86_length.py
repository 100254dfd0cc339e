"""The length of an x86 instruction, in 64-bit and in 32-bit code.

Source: Intel SDM volume 2, appendix A (opcode maps) and chapter 2 (prefixes, ModRM, SIB, VEX, EVEX).
"""

from __future__ import annotations

LONGEST = 15
_PREFIXES = frozenset((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3))


def _set(*ranges: int | tuple[int, int]) -> frozenset[int]:
    return frozenset(n for r in ranges for n in (range(r[0], r[1] + 1) if isinstance(r, tuple) else (r,)))


_ALU = [base + n for base in range(0, 0x40, 8) for n in range(4)]
_MODRM = _set(*_ALU, 0x63, 0x69, 0x6B, (0x80, 0x8F), 0xC0, 0xC1, 0xC6, 0xC7, (0xD0, 0xD3), (0xD8, 0xDF), 0xF6, 0xF7,
              0xFE, 0xFF)  # fmt: skip
_IMM8 = _set(*(base + 4 for base in range(0, 0x40, 8)), 0x6A, 0x6B, (0x70, 0x7F), 0x80, 0x83, 0xA8, (0xB0, 0xB7), 0xC0,
             0xC1, 0xC6, 0xCD, (0xE0, 0xE7), 0xEB)  # fmt: skip
_IMM32 = _set(*(base + 5 for base in range(0, 0x40, 8)), 0x68, 0x69, 0x81, 0xA9, (0xB8, 0xBF), 0xC7, 0xE8, 0xE9)
_NONE = _set((0x50, 0x5F), (0x90, 0x99), (0x9B, 0x9F), (0xA4, 0xA7), (0xAA, 0xAF), 0xC3, 0xC9, 0xCC, (0xEC, 0xEF),
             (0xF4, 0xF5), (0xF8, 0xFD))  # fmt: skip

_TWO_NONE = _set(0x05, 0x0B, 0x31, 0x34, 0x77, 0xA0, 0xA1, 0xA2, 0xA8, 0xA9, (0xC8, 0xCF))
_TWO_IMM8 = _set((0x70, 0x73), 0xA4, 0xAC, 0xBA, 0xC2, (0xC4, 0xC6))


def instruction_length(code: bytes, at: int, wide: bool) -> int:
    """Return the number of bytes of the x86 instruction at code[at], or 0 if it is invalid, incomplete or unknown.

    Args:
        code: The code.
        at: Offset of the instruction.
        wide: True for 64-bit code.
    """
    try:
        size = _length(code, at, wide)
    except IndexError:
        return 0
    return size if 0 < size <= LONGEST and at + size <= len(code) else 0


def _length(code: bytes, at: int, wide: bool) -> int:
    start = at
    short = False
    while code[at] in _PREFIXES:
        short |= code[at] == 0x66
        at += 1
    big = False
    if wide and code[at] & 0xF0 == 0x40:
        big = bool(code[at] & 8)
        short &= not big
        at += 1
    opcode = code[at]
    if opcode in (0xC4, 0xC5, 0x62) and (wide or code[at + 1] >= 0xC0):
        return _vector(code, at, wide) - start
    if opcode == 0x0F:
        return _two_bytes(code, at + 1, wide) - start
    at += 1
    if not wide and 0x40 <= opcode < 0x50:  # inc, dec
        return at - start
    if opcode in _MODRM:
        reg = (code[at] >> 3) & 7
        at = _modrm(code, at, wide)
        if opcode in (0xF6, 0xF7) and reg < 2:  # test
            return at + (1 if opcode == 0xF6 else 2 if short else 4) - start
    elif opcode in (0xC2, 0xCA):
        return at + 2 - start
    elif 0xA0 <= opcode < 0xA4:
        return at + (8 if wide else 4) - start
    elif opcode not in _IMM8 and opcode not in _IMM32 and opcode not in _NONE:
        return 0
    if opcode in _IMM8:
        at += 1
    elif opcode in _IMM32:
        at += 8 if big and 0xB8 <= opcode < 0xC0 else 2 if short and opcode not in (0xE8, 0xE9) else 4
    return at - start


def _two_bytes(code: bytes, at: int, wide: bool) -> int:
    """Return the end of an x86 instruction with a two-byte opcode. `at` is the offset after its 0f."""
    opcode = code[at]
    if opcode == 0x38:
        return _modrm(code, at + 2, wide)
    if opcode == 0x3A:
        return _modrm(code, at + 2, wide) + 1
    if opcode in _TWO_NONE:
        return at + 1
    if 0x80 <= opcode < 0x90:  # jcc rel32
        return at + 5
    return _modrm(code, at + 1, wide) + (opcode in _TWO_IMM8)


def _vector(code: bytes, at: int, wide: bool) -> int:
    """Return the end of an x86 instruction with a VEX or EVEX prefix."""
    kind = code[at]
    table = 1 if kind == 0xC5 else code[at + 1] & (7 if kind == 0x62 else 0x1F)
    at += {0xC5: 2, 0xC4: 3, 0x62: 4}[kind]
    opcode = code[at]
    if opcode == 0x77 and table == 1:
        return at + 1
    return _modrm(code, at + 1, wide) + (table == 3 or (table == 1 and opcode in _TWO_IMM8))


def _modrm(code: bytes, at: int, wide: bool) -> int:
    """Return the end of an x86 ModRM byte with its SIB byte and displacement. 16-bit addressing is not supported."""
    mod, rm = code[at] >> 6, code[at] & 7
    at += 1
    if mod == 3:
        return at
    if rm == 4:
        rm = code[at] & 7
        at += 1
        if mod == 0 and rm == 5:
            return at + 4
    elif mod == 0 and rm == 5:
        return at + 4
    return at + (0, 1, 4)[mod]
