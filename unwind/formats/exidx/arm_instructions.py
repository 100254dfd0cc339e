"""A decoder of the ARM instructions by which compilers' prologues and epilogues change the stack pointer.

It covers A32 and T32, by the encodings of the ARM Architecture Reference Manual (ARMv7-A, A8). Every other instruction
is OTHER.
"""

from __future__ import annotations

import struct
import sys
from array import array
from enum import IntEnum

from pyprof.records import dataclass


class Effect(IntEnum):
    """The effect of an ARM instruction on sp and control flow. The names n and reg are fields of Insn."""

    OTHER = 0
    MOVE = 1  # sp += n
    FRAME = 2  # reg = sp + n
    BACK = 3  # sp = reg + n
    RAISE = 4  # reg += n
    CALL = 5
    LEAVE = 6  # sp += n, and control goes elsewhere (a return, a branch); reg: register with the target, or -1
    UNKNOWN = 7  # sp is changed in another way


@dataclass(frozen=True, slots=True)
class Insn:
    """An ARM instruction at address `at` of `size` bytes, and its effect."""

    at: int
    size: int
    effect: Effect
    n: int = 0
    reg: int = -1


SP, PC = 13, 15


MAX_MEMO = 1 << 16

_Meaning = tuple[Effect, int, int]
_OTHER: _Meaning = (Effect.OTHER, 0, -1)


class Decoder:
    """A decoder of ARM instructions, which caches the result for each encoding, because programs use few different
    ones.
    """

    def __init__(self) -> None:
        self._t32: dict[int, _Meaning] = {}
        self._wide: dict[tuple[bool, int], _Meaning] = {}

    def decode_block(self, code: bytes, start: int, thumb: bool) -> list[Insn]:
        """Return the instructions other than OTHER in a block of ARM code. Data between instructions is decoded too.

        Args:
            code: The code.
            start: File address (svma) of the code.
            thumb: The code is T32, else A32.
        """
        found: list[Insn] = []
        halves = memoryview(code[: len(code) & ~1]).cast("H") if LITTLE_HOST else _halves(code)
        at, count, conditional = 0, len(halves), 0
        t32, wide = self._t32, self._wide
        while at < count:
            first = halves[at]
            size = 1 if thumb and first < 0xE800 else 2
            if size == 1:
                meaning = t32.get(first)
                if meaning is None:
                    meaning = t32[first] = _t32(first)
            else:
                if at + 2 > count:
                    break
                key = (thumb, first << 16 | halves[at + 1])
                known = wide.get(key)
                if known is None:
                    if len(wide) >= MAX_MEMO:
                        wide.clear()
                    second = halves[at + 1]
                    known = wide[key] = _t32_wide(first, second) if thumb else _a32(second << 16 | first)
                meaning = known
            if conditional:  # an IT block may skip the instruction, so it is ignored
                conditional -= 1
            elif meaning is not _OTHER:
                found.append(Insn(start + 2 * at, 2 * size, *meaning))
            elif size == 1 and first & 0xFF00 == 0xBF00 and first & 0xF:
                conditional = 4 - ((first & -first).bit_length() - 1)
            at += size
        return found


LITTLE_HOST = sys.byteorder == "little"


def _halves(code: bytes) -> memoryview:
    """Return ARM code as 16-bit units. It is little-endian on every ARM that Linux runs on."""
    return memoryview(array("H", struct.unpack(f"<{len(code) // 2}H", code[: len(code) & ~1])))


def _a32(word: int) -> _Meaning:
    low, high = word & 0xFFFF, word >> 16 & 0xFFF
    if word >> 28 != 0xE:
        called = word >> 25 == 0b1111101 or word >> 24 & 0xF == 0xB
        return (Effect.CALL, 0, -1) if called else _OTHER
    if high == 0x92D:  # push
        return Effect.MOVE, -4 * low.bit_count(), -1
    if high == 0x8BD:  # pop
        return Effect.LEAVE if low >> PC else Effect.MOVE, 4 * low.bit_count(), -1
    if high == 0x52D:  # str [sp, #-n]!
        return Effect.MOVE, -(low & 0xFFF), -1
    if high == 0x49D:  # ldr [sp], #n
        return Effect.LEAVE if low >> 12 == PC else Effect.MOVE, low & 0xFFF, -1
    pair = (low >> 4 & 0xF0) | (low & 0xF)
    if high == 0x16D and low & 0xF0 == 0xF0:  # strd [sp, #-n]!
        return Effect.MOVE, -pair, -1
    if high == 0x0CD and low & 0xF0 == 0xD0:  # ldrd [sp], #n
        return Effect.MOVE, pair, -1
    if high & 0xFBF == 0xD2D and low & 0xE00 == 0xA00:  # vpush
        return Effect.MOVE, -4 * (low & 0xFF), -1
    if high & 0xFBF == 0xCBD and low & 0xE00 == 0xA00:  # vpop
        return Effect.MOVE, 4 * (low & 0xFF), -1
    if high & 0xFF0 in (0x240, 0x280):  # sub, add rd, rn, #n
        turn = 2 * (low >> 8 & 0xF)
        value = ((low & 0xFF) >> turn | (low & 0xFF) << 32 - turn) & 0xFFFF_FFFF
        return _sum(low >> 12, high & 0xF, value if high & 0xFF0 == 0x280 else -value)
    if high == 0x1A0 and low & 0xFF0 == 0:  # mov rd, rm
        return _sum(low >> 12, low & 0xF, 0)
    if word & 0x0FFF_FFD0 == 0x012F_FF10:  # bx, blx rm
        return Effect.CALL if low & 0x20 else Effect.LEAVE, 0, low & 0xF
    if word >> 24 & 0xE == 0xA:
        return Effect.CALL if word >> 24 & 1 else Effect.LEAVE, 0, -1
    writes = high >> 10 == 0 and high & 0x190 != 0x110 and low >> 12 == SP
    return (Effect.UNKNOWN, 0, -1) if writes and not (low & 0x90 == 0x90 and high < 0x200) else _OTHER


def _t32(half: int) -> _Meaning:
    if half & 0xFE00 == 0xB400:  # push
        return Effect.MOVE, -4 * (half & 0x1FF).bit_count(), -1
    if half & 0xFE00 == 0xBC00:  # pop
        return Effect.LEAVE if half & 0x100 else Effect.MOVE, 4 * (half & 0x1FF).bit_count(), -1
    if half & 0xFF00 == 0xB000:  # add, sub sp, #n
        return Effect.MOVE, (-4 if half & 0x80 else 4) * (half & 0x7F), -1
    if half & 0xF800 == 0xA800:  # add rd, sp, #n
        return Effect.FRAME, 4 * (half & 0xFF), half >> 8 & 7
    if half & 0xFF00 == 0x4600:  # mov rd, rm
        return _sum((half & 7) | (half >> 4 & 8), half >> 3 & 0xF, 0)
    if half & 0xF800 == 0x3000:  # adds rd, #n
        return Effect.RAISE, half & 0xFF, half >> 8 & 7
    if half & 0xFF07 == 0x4700:  # bx, blx rm
        return Effect.CALL if half & 0x80 else Effect.LEAVE, 0, half >> 3 & 0xF
    if half & 0xF800 == 0xE000:  # b
        return Effect.LEAVE, 0, -1
    return (Effect.UNKNOWN, 0, -1) if half & 0xFF87 == 0x4485 else _OTHER


def _t32_wide(first: int, second: int) -> _Meaning:
    if first == 0xE92D:  # push
        return Effect.MOVE, -4 * second.bit_count(), -1
    if first == 0xE8BD:  # pop
        return Effect.LEAVE if second >> PC else Effect.MOVE, 4 * second.bit_count(), -1
    if first == 0xF84D and second & 0xF00 == 0xD00:  # str [sp, #-n]!
        return Effect.MOVE, -(second & 0xFF), -1
    if first == 0xF85D and second & 0xF00 == 0xB00:  # ldr [sp], #n
        return Effect.LEAVE if second >> 12 == PC else Effect.MOVE, second & 0xFF, -1
    if first == 0xE96D:  # strd [sp, #-n]!
        return Effect.MOVE, -4 * (second & 0xFF), -1
    if first == 0xE8FD:  # ldrd [sp], #n
        return Effect.MOVE, 4 * (second & 0xFF), -1
    if first & 0xFFBF == 0xED2D and second & 0xE00 == 0xA00:  # vpush
        return Effect.MOVE, -4 * (second & 0xFF), -1
    if first & 0xFFBF == 0xECBD and second & 0xE00 == 0xA00:  # vpop
        return Effect.MOVE, 4 * (second & 0xFF), -1
    if first & 0xFA00 == 0xF000 and second & 0x8000 == 0:  # data processing, immediate
        kind, immediate = first >> 4 & 0x1F, (first >> 10 & 1) << 11 | (second >> 4 & 0x700) | (second & 0xFF)
        rd, rn = second >> 8 & 0xF, first & 0xF
        if first & 0x0200 == 0 and kind & 0x1E in (0x10, 0x1A) and rd != PC:  # add, sub; not cmn, cmp
            value = _expand(immediate)
            return _sum(rd, rn, value if kind & 0x1E == 0x10 else -value)
    if first & 0xFBF0 in (0xF200, 0xF2A0) and second & 0x8000 == 0:  # addw, subw
        immediate = (first >> 10 & 1) << 11 | (second >> 4 & 0x700) | (second & 0xFF)
        return _sum(second >> 8 & 0xF, first & 0xF, immediate if first & 0xF0 == 0 else -immediate)
    if first & 0xF800 == 0xF000 and second & 0x8000:
        if second & 0x4000:  # bl, blx
            return Effect.CALL, 0, -1
        return (Effect.LEAVE, 0, -1) if second & 0x1000 else _OTHER  # b
    if first & 0xFE00 == 0xEA00 and second >> 8 & 0xF == SP and first >> 5 & 0xF not in (0, 4, 8, 13):
        return Effect.UNKNOWN, 0, -1
    return _OTHER


def _sum(rd: int, rn: int, n: int) -> _Meaning:
    """Return the effect of an ARM instruction that adds a number (rd = rn + n) on the stack pointer and control
    flow.
    """
    if rd == SP:
        return (Effect.MOVE, n, -1) if rn == SP else (Effect.BACK, n, rn)
    if rd == PC:
        return Effect.LEAVE, 0, rn
    if rn == SP:
        return Effect.FRAME, n, rd
    return (Effect.RAISE, n, rd) if rd == rn and n else _OTHER


def _expand(immediate: int) -> int:
    """Expand an immediate operand of a T32 instruction (ThumbExpandImm)."""
    low = immediate & 0xFF
    if immediate >> 10 == 0:
        return (low, low << 16 | low, low << 24 | low << 8, low * 0x01010101)[immediate >> 8]
    turn, value = immediate >> 7, 0x80 | immediate & 0x7F
    return (value >> turn | value << 32 - turn) & 0xFFFF_FFFF
