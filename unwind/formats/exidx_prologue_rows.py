"""Rows inside a function's prologue and epilogues, which EXIDX does not describe, from its ARM instructions.

The decoder knows the instructions by which compilers' prologues and epilogues change the stack pointer. It covers A32
and T32, by the encodings of the ARM Architecture Reference Manual (ARMv7-A, A8). Every other instruction is OTHER.

The table's rule holds once the frame is complete: at every call. The pc of a sample's innermost frame may be anywhere,
one time in ten in a prologue or an epilogue. Few instructions build or remove a frame, and the table gives the frame
size to which they must add up. If the code adds up to that size, rows are made from it. Otherwise the table's rule
holds for the whole function.

    depth d = cfa - sp: 0 at the function's start
    cfa = sp + d;  registers that the table has at [cfa - n]: there if n <= d, else still (or again) in the register
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable
from enum import IntEnum

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.unwind.rules import RegKind, RegRule, Rule


class Effect(IntEnum):
    """The effect of an ARM instruction on sp and control flow. In the comments, n and reg are fields of Insn."""

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
    """Return the effect on sp and control flow of an ARM instruction that adds a number: rd = rn + n."""
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


MAX_FUNCTION_BYTES = 1 << 14
"""Maximum number of bytes of an ARM function that are examined for prologues and epilogues."""
MODE_CODE = 1 << 9
"""Number of bytes of an ARM prologue by which A32 and T32 are told apart."""
MAX_PROLOGUE, MAX_EPILOGUE = 256, 64
"""Maximum sizes in bytes of the ARM code that builds a frame and of the code that removes it."""

Rows = tuple[tuple[int, ...], tuple[Rule, ...]]
"""Unwind rows of a function: the start address of each row, and the rule of each row."""

Spans = dict[int, tuple[int, Rule]]
"""Spans of code with their unwind rule: (end, rule) by start; start and end are file addresses (svma)."""


class RowReader:
    """A maker of the unwind rows of one file's functions, from their EXIDX entries and code."""

    def __init__(self, arch: Arch, read: Callable[[int, int], bytes]) -> None:
        self._sp, self._lr = arch.sp, arch.lr
        self._read = read
        self._decoder = Decoder()

    def rows(self, rule: Rule, start: int, end: int) -> Rows:
        """Return the unwind rows of an ARM function, with its prologue and epilogues.

        Args:
            rule: The function's unwind rule in the exception index.
            start: File address (svma) of the function.
            end: Address after it.
        """
        alone: Rows = (start,), (rule,)
        if rule.cfa_deref or rule.cfa_reg < 0 or rule.signal or (rule.cfa_reg == self._sp and not rule.cfa_off):
            return alone
        if any(how.kind is not RegKind.AT_CFA for _, how in rule.regs):
            return alone
        code = self._read(start, min(end - start, MAX_FUNCTION_BYTES))
        tried = [(thumb, self._sweep(code[:MODE_CODE], start, thumb)) for thumb in (True, False)]
        known = [(thumb, insns, spans) for thumb, insns in tried if (spans := self._prologues(rule, start, insns))]
        if len(known) != 1:  # not a compiler's code, or valid as both A32 and T32: the index does not say which
            return alone
        ((thumb, insns, spans),) = known
        if len(code) > MODE_CODE:
            insns = self._sweep(code, start, thumb)
            spans = self._prologues(rule, start, insns)
        for last, insn in enumerate(insns):
            if insn.effect is Effect.LEAVE:
                spans.update(self._epilogue(rule, start, insns, last))
        return _merged(rule, start, end, spans)

    def _sweep(self, code: bytes, start: int, thumb: bool) -> list[Insn]:
        return self._decoder.decode_block(code, start, thumb)

    def _prologues(self, rule: Rule, start: int, insns: list[Insn]) -> Spans:
        """Return the code spans of all prologues of an EXIDX entry, {} if there is none. An entry may cover several
        functions.
        """
        found: Spans = {}
        early: list[int] = []  # paths that return before a frame is begun
        first = 0
        while first < len(insns):
            spans = self._prologue(rule, start, insns, first)
            if spans:
                for position in early:
                    found |= self._at_depths(rule, start, insns, position, [0])
                found |= spans
                early.clear()
            last = first
            while last < len(insns) and insns[last].effect is not Effect.LEAVE:
                last += 1
            if not found and last == first:
                early.append(first)
            first = last + 1
        return found

    def _prologue(self, rule: Rule, start: int, insns: list[Insn], first: int) -> Spans:
        """Return the code spans of a prologue up to the instruction that completes the frame.

        The result is {} if the code does not add up to the frame size.
        """
        begin, depth = _span(start, insns, first)[0], 0
        depths: list[int] = []
        for position in range(first, len(insns)):
            insn = insns[position]
            if insn.at + insn.size - begin > MAX_PROLOGUE:
                return {}
            depths.append(depth)
            if insn.effect is Effect.MOVE:
                if insn.n > 0:
                    return {}
                depth -= insn.n
                if rule.cfa_reg == self._sp and depth >= rule.cfa_off:
                    return self._at_depths(rule, start, insns, first, depths) if depth == rule.cfa_off else {}
            elif insn.effect is Effect.FRAME:
                if insn.reg == rule.cfa_reg:
                    if depth - insn.n != rule.cfa_off:
                        return {}
                    spans = self._at_depths(rule, start, insns, first, depths)
                    return self._pushed_later(rule, insns, position, depth, spans)
            elif insn.effect is not Effect.RAISE:
                return {}
        return {}

    def _at_depths(self, rule: Rule, start: int, insns: list[Insn], first: int, depths: list[int]) -> Spans:
        """Return the unwind rules of consecutive ARM instructions as code spans, given the stack depth before each
        instruction.
        """
        spans: Spans = {}
        for position, depth in enumerate(depths, first):
            begin, after = _span(start, insns, position)
            spans[begin] = after, self._at_depth(rule, self._sp, depth)
        return spans

    def _pushed_later(self, rule: Rule, insns: list[Insn], frame: int, depth: int, spans: Spans) -> Spans:
        """Return the code spans of a prologue that sets its frame register first and then pushes its last registers. In
        T32 code, Clang pushes r8 to r11 in this way.

        Args:
            rule: The function's unwind rule in the exception index.
            insns: The instructions of the prologue.
            frame: Position of the instruction that sets the frame register.
            depth: The stack depth in bytes at that instruction.
            spans: The code spans up to that instruction, to which this function adds.
        """
        for position in range(frame + 1, len(insns)):
            insn = insns[position]
            begin, after = insns[position - 1].at + insns[position - 1].size, insn.at + insn.size
            waits = any(-how.n > depth for _, how in rule.regs)
            if not waits or insn.effect is not Effect.MOVE or insn.n > 0 or after - insns[frame].at > MAX_PROLOGUE:
                break
            regs = tuple((column, how) for column, how in rule.regs if -how.n <= depth)
            spans[begin] = after, rule._replace(regs=regs)
            depth -= insn.n
        return spans

    def _epilogue(self, rule: Rule, start: int, insns: list[Insn], last: int) -> Spans:
        """Return the code spans of the instructions that remove the frame before an instruction that leaves the
        function.

        A return leaves nothing on the stack, so each instruction before it is certain. A branch is a tail call only if
        the instructions before it remove the whole frame. Otherwise the result is {}.
        """
        end, by_sp = insns[last], rule.cfa_reg == self._sp
        spans: Spans = {}
        sure = spans if end.n or end.reg == self._lr else {}
        depth, raised = 0, -1  # raised: the cfa's distance from the frame register from which sp was set
        for position in range(last, -1, -1):
            insn = insns[position]
            if end.at - insn.at > MAX_EPILOGUE:
                return sure
            if position != last and insn.effect in (Effect.CALL, Effect.LEAVE, Effect.UNKNOWN):
                return sure
            if raised >= 0:
                if insn.effect is Effect.RAISE and insn.reg == rule.cfa_reg:
                    return spans if raised + insn.n == rule.cfa_off else sure
            elif insn.effect is Effect.BACK:
                if insn.reg != rule.cfa_reg:
                    return sure
                raised = depth + insn.n
                if raised == rule.cfa_off:
                    return spans
            elif insn.effect in (Effect.MOVE, Effect.LEAVE):
                if insn.n < 0:
                    return sure
                depth += insn.n
                if by_sp and depth == rule.cfa_off:
                    return spans
            begin, after = _span(start, insns, position)
            begin = max(begin, end.at - MAX_EPILOGUE)
            state = self._at_depth(rule, rule.cfa_reg, raised) if raised >= 0 else self._at_depth(rule, self._sp, depth)
            spans[begin] = after, state
        return sure

    def _at_depth(self, rule: Rule, base: int, depth: int) -> Rule:
        """Return the unwind rule of a function at a place where cfa = base + depth.

        Registers whose slot lies below sp are not saved there yet, or no longer.
        """
        whole = base != self._sp
        regs = tuple((column, how) for column, how in rule.regs if whole or -how.n <= depth)
        saved = rule.ra.kind is RegKind.AT_CFA and (whole or -rule.ra.n <= depth)
        return Rule(base, depth, rule.ra if saved else RegRule(RegKind.REG_PLUS, 0, self._lr), regs)


def _span(start: int, insns: list[Insn], position: int) -> tuple[int, int]:
    """Return the code span (start, end) in which the rule that holds before an instruction applies. It goes from the
    end of the previous known instruction to the end of this instruction, because nothing changes sp in between.
    """
    before = insns[position - 1] if position else None
    insn = insns[position]
    return (before.at + before.size if before else start), insn.at + insn.size


def _merged(rule: Rule, start: int, end: int, spans: Spans) -> Rows:
    """Return the unwind rows of an ARM function: the code spans of its prologues and epilogues, and the rule of the
    exception index everywhere else.
    """
    starts: list[int] = []
    rules: list[Rule] = []

    def add(at: int, state: Rule) -> None:
        if not rules or rules[-1] != state:
            starts.append(at)
            rules.append(state)

    reached = start
    for begin, (after, state) in sorted(spans.items()):
        if begin < reached:
            continue
        if begin > reached:
            add(reached, rule)
        add(begin, state)
        reached = after
    if reached < end:
        add(reached, rule)
    return tuple(starts), tuple(rules)
