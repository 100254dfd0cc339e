"""The function table of a Windows x64 module (.pdata and .xdata) as an unwind source.

An entry of the table has the start and end of a function and its unwind info. That lists what the prologue does,
with the offset after each instruction. A chained info continues the one of another part of the function. Epilogues
are not listed, or since version 2 only by their places. Windows recognises an epilogue by its instructions, and so
does this reader: code is an epilogue if it undoes exactly what the unwind info states. Functions that are not in the
table have no frame.
Source: "x64 exception handling" of Microsoft; dlls/ntdll/signal_x86_64.c of Wine.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.arch.x86_instructions import instruction_length
from pyprof.model.unwind_result import Trust
from pyprof.objfile.base import ObjectFile, UnwindTable
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.rules import SAME, Extents, FunctionRows, RegKind, RegRule, Rule

ARCH = "x86_64"
SECTION, INFO = ".pdata", ".xdata"
ENTRY_BYTES = 12
MAX_CHAIN = 32
"""Maximum number of chained unwind infos of one function, as in Windows."""
MAX_FUNCTION_BYTES = 1 << 18
"""Maximum number of bytes of a function that are searched for epilogues."""
MAX_EPILOGUES = 1 << 12
WORD = 8
MACHINE_FRAME = 5 * WORD
"""Size in bytes of the five words that an interrupt pushes: the interrupted code's rip, cs, flags, rsp and ss."""

REGISTERS = (0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15)
"""Column of each register in the x86-64 Arch, by its number in the instruction set (rax rcx rdx rbx rsp rbp rsi rdi r8
to r15).
"""
RSP, RSI, RDI = 4, 6, 7
"""Numbers of x86-64 registers in the instruction set."""


class UnwindCode(IntEnum):
    """An operation of unwind info (UWOP_*)."""

    PUSH_NONVOL = 0
    ALLOC_LARGE = 1
    ALLOC_SMALL = 2
    SET_FPREG = 3
    SAVE_NONVOL = 4
    SAVE_NONVOL_FAR = 5
    EPILOG = 6  # version 2; in version 1 the save of half a vector register
    SPARE = 7  # in version 1 the same with a large offset
    SAVE_XMM128 = 8
    SAVE_XMM128_FAR = 9
    PUSH_MACHFRAME = 10


_SLOTS = {
    UnwindCode.SAVE_NONVOL: 2,
    UnwindCode.SAVE_NONVOL_FAR: 3,
    UnwindCode.EPILOG: 2,
    UnwindCode.SPARE: 3,
    UnwindCode.SAVE_XMM128: 2,
    UnwindCode.SAVE_XMM128_FAR: 3,
}
"""Number of 16-bit units of the operations that take more than one."""


class PrologueStep(NamedTuple):
    """The effect of one instruction of a prologue, as the unwind info states it.

    Attributes:
        after: Offset in the function of the next instruction.
        code: The operation.
        register: A register's number in the instruction set.
        n: Size or offset in bytes.
    """

    after: int
    code: UnwindCode
    register: int
    n: int


class UnwindInfo(NamedTuple):
    """The unwind info of one part of a function.

    Attributes:
        steps: The prologue in the order in which it runs.
        frame: Number of the frame register, 0 if there is none.
    """

    steps: tuple[PrologueStep, ...]
    frame: int


class UnwoundFrame:
    """The frame of a function at one place of its code, which results from the prologue steps that were executed before
    that place.
    """

    def __init__(self) -> None:
        self.depth = WORD
        self.base = 0
        self.base_offset = 0
        self.base_depth = 0
        self.pushed: list[int] = []
        self.saved: dict[int, int] = {}
        self.interrupted = False

    def run(self, info: UnwindInfo, offset: int | None = None) -> None:
        """Apply those steps of an unwind info to the frame that were executed at an offset in the prologue.

        Args:
            info: The unwind info.
            offset: Offset of a pc in the function. Only the steps before that offset are applied. None means all steps.
        """
        moved: list[PrologueStep] = []
        for step in info.steps:
            if offset is not None and step.after > offset:
                break
            if step.code is UnwindCode.PUSH_NONVOL:
                self.depth += WORD
                self.pushed.append(step.register)
                self.saved[step.register] = -self.depth
            elif step.code in (UnwindCode.ALLOC_LARGE, UnwindCode.ALLOC_SMALL):
                self.depth += step.n
            elif step.code is UnwindCode.SET_FPREG:
                self.base, self.base_depth = info.frame, self.depth
                self.base_offset = self.depth - step.n
            elif step.code in (UnwindCode.SAVE_NONVOL, UnwindCode.SAVE_NONVOL_FAR):
                moved.append(step)
            else:  # PUSH_MACHFRAME
                self.depth += MACHINE_FRAME - WORD + step.n
                self.interrupted = True
        bottom = self.base_depth if info.frame and self.base else self.depth
        for step in moved:
            self.saved[step.register] = step.n - bottom

    def rule(self, sp: int, depth: int | None = None, still_saved: Sequence[int] | None = None) -> Rule:
        """Return the unwind rule of this frame.

        Args:
            sp: Column of the stack pointer.
            depth: For a place in an epilogue: distance in bytes from the stack pointer to the CFA. None for other
                places.
            still_saved: For a place in an epilogue: numbers of the registers whose saved value is still on the stack.
        """
        kept = dict(self.saved)
        if still_saved is not None:
            kept = {register: kept[register] for register in still_saved}
        regs = {REGISTERS[register]: RegRule(RegKind.AT_CFA, at) for register, at in kept.items()}
        for register in (RSI, RDI):  # the callee saves them on Windows
            regs.setdefault(REGISTERS[register], SAME)
        returns = -WORD
        if self.interrupted:
            returns = -MACHINE_FRAME
            regs[sp] = RegRule(RegKind.AT_CFA, 3 * WORD - MACHINE_FRAME)
        base, offset = (REGISTERS[self.base], self.base_offset) if self.base else (sp, self.depth)
        if depth is not None:
            base, offset = sp, depth
        saved = tuple(sorted(regs.items()))
        return Rule(base, offset, RegRule(RegKind.AT_CFA, returns), saved, signal=self.interrupted)


class Pdata:
    """An unwind source from .pdata. Implements pyprof.unwind.rules.Source."""

    name = "pdata"
    trust = Trust.PDATA
    exact = True

    def __init__(self, file: ObjectFile, table: UnwindTable, arch: Arch) -> None:
        """Read the function table of a module.

        Args:
            file: The module.
            table: The place of its function table.
            arch: The architecture.

        Raises:
            FormatError: The table cannot be read.
        """
        self._file = file
        self._sp = arch.sp
        self._base = file.min_vaddr
        data = table.read()
        rows = np.frombuffer(data, "<u4", len(data) // ENTRY_BYTES * 3).reshape(-1, 3)
        rows = rows[(rows[:, 1] > rows[:, 0]) & (rows[:, 2] > 0)]
        if bool((np.diff(rows[:, 0].astype(np.int64)) < 0).any()):
            file.oddities.append("pdata_not_sorted")
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
        self._rows = rows
        self._starts: list[int] = rows[:, 0].tolist()

    def function_at(self, svma: int) -> FunctionRows | None:
        """Return the unwind rows of the function that covers a file address, or None if the table does not cover it.

        Raises:
            FormatError: The unwind info of the function is broken.
        """
        at = bisect_right(self._starts, svma - self._base) - 1
        if at < 0 or svma - self._base >= int(self._rows[at, 1]):
            return None
        return self._function(at)

    def extents(self) -> Extents:
        rows = self._rows.astype(np.uint64) + np.uint64(self._base)
        return rows[:, 0], rows[:, 1]

    def functions(self) -> Iterator[FunctionRows]:
        return map(self._function, range(len(self._starts)))

    def _function(self, at: int) -> FunctionRows:
        start, end, info = self._rows[at].tolist()
        if at + 1 < len(self._starts):
            end = min(end, max(self._starts[at + 1], start + 1))
        infos = self._chain(info)
        frame = UnwoundFrame()
        for outer in infos[:-1]:
            frame.run(outer)
        outer_frame = frame.depth, len(frame.pushed)
        own = infos[-1]
        starts, rules = [], []
        for offset in sorted({0, *(step.after for step in own.steps)}):
            frame = UnwoundFrame()
            for outer in infos[:-1]:
                frame.run(outer)
            frame.run(own, offset)
            if offset < end - start:
                starts.append(start + offset)
                rules.append(frame.rule(self._sp))
        epilogues = self._epilogues(start, end, frame, outer_frame if len(infos) > 1 else None)
        for first, after, rule in epilogues:
            _insert(starts, rules, first, after, rule, end)
        base = self._base
        return FunctionRows(base + start, base + end, tuple(base + place for place in starts), tuple(rules))

    def _chain(self, info: int) -> list[UnwindInfo]:
        """Return the unwind infos that apply to a part of a function: its own, and before it those to which it is
        chained.
        """
        found: list[UnwindInfo] = []
        while len(found) < MAX_CHAIN:
            if info & 1:  # the place of another entry of the table
                info = struct.unpack("<8xI", self._read(info & ~1, ENTRY_BYTES))[0]
                if info & 1:
                    raise FormatError(SECTION, info, "chain of entries")
            unwind, chained = self._info(info)
            found.append(unwind)
            if not chained:
                return found[::-1]
            info = chained
        raise FormatError(INFO, info, "endless chain")

    def _info(self, rva: int) -> tuple[UnwindInfo, int]:
        """Return the unwind info at an address relative to the module's base, and the address of the info to which it
        is chained, or 0.
        """
        head, _, count, frame = self._read(rva, 4)
        version, flags = head & 7, head >> 3
        if version not in (1, 2):
            raise FormatError(INFO, rva, f"version {version}")
        units = struct.unpack(f"<{count}H", self._read(rva + 4, 2 * count)) if count else ()
        steps: list[PrologueStep] = []
        at = 0
        while at < count:
            word = units[at]
            try:
                code = UnwindCode(word >> 8 & 15)
            except ValueError:
                raise FormatError(INFO, rva + 4 + 2 * at, f"operation {word >> 8 & 15}") from None
            size = _SLOTS.get(code, 1)
            if code is UnwindCode.ALLOC_LARGE:
                size = 3 if word >> 12 else 2
            elif code is UnwindCode.EPILOG and version == 2:
                size = 1
            if at + size > count:
                raise FormatError(INFO, rva + 4 + 2 * at, "operation is cut off")
            step = _step(word, code, units[at + 1 : at + size], frame >> 4)
            if step is not None:
                steps.append(step)
            at += size
        chained = 0
        if flags & 4:
            chained = struct.unpack("<8xI", self._read(rva + 4 + 2 * (count + 1 & ~1), ENTRY_BYTES))[0]
        return UnwindInfo(tuple(steps[::-1]), frame & 15), chained

    def _read(self, rva: int, size: int) -> bytes:
        data = bytes(self._file.at_svma(self._base + rva, size))
        if len(data) < size:
            raise FormatError(INFO, rva, "past the end")
        return data

    def _epilogues(
        self, start: int, end: int, frame: UnwoundFrame, outer: tuple[int, int] | None
    ) -> Iterator[tuple[int, int, Rule]]:
        """Yield the rows (start, end, rule) of a function's epilogues.

        Args:
            start: Address of the function relative to the module's base.
            end: Address after it.
            frame: The complete frame of the function, as it is after the prologue.
            outer: For a part that is chained to another part of its function: the other part's stack depth in bytes and
                number of pushed registers.
        """
        if frame.interrupted or frame.depth == WORD:
            return
        code = bytes(self._file.at_svma(self._base + start, min(end - start, MAX_FUNCTION_BYTES)))
        yield from self._undoing(code, start, frame, WORD, frame.pushed, _RETURN)
        if outer is not None and frame.depth > outer[0]:
            yield from self._undoing(code, start, frame, outer[0], frame.pushed[outer[1] :], _JUMP)

    def _undoing(
        self, code: bytes, start: int, frame: UnwoundFrame, until: int, pushed: Sequence[int], leaving: bytes
    ) -> Iterator[tuple[int, int, Rule]]:
        """Yield the rows (start, end, rule) of an epilogue's instructions, which undo the frame step by step down to a
        depth.

        Args:
            code: Code of the function.
            start: Address of the code relative to the module's base.
            frame: The complete frame of the function.
            until: Stack depth in bytes after the epilogue.
            pushed: Registers that the epilogue pops, in the order of their pushes.
            leaving: Pattern of the instruction after the epilogue.
        """
        pops = [b"A" * (register > 7) + bytes((0x58 | register & 7,)) for register in reversed(pushed)]
        top = until + WORD * len(pushed)
        pattern = (
            b"(?P<adjust>" + _ADJUST + b")" + b"?" * bool(pops) + re.escape(b"".join(pops)) + b"(?=" + leaving + b")"
        )
        boundaries: set[int] | None = None
        for number, found in enumerate(re.finditer(pattern, code, re.DOTALL)):
            if number >= MAX_EPILOGUES:
                return
            at, adjust = found.start(), found["adjust"]
            if adjust is not None and not _restores(adjust, frame, top):
                at, adjust = found.end("adjust"), None
            if adjust is None:  # two bytes may look like a pop and a return
                if not pops:
                    continue
                boundaries = _instruction_starts(code) if boundaries is None else boundaries
                if at not in boundaries:
                    continue
            at += len(adjust or b"")
            kept = list(pushed)
            others = [register for register in frame.saved if register not in kept]
            others = others if until > WORD else []
            for pop in (*pops, b""):
                after = at + (len(pop) or 1)
                depth = until + WORD * len(kept)
                yield start + at, start + after, frame.rule(self._sp, depth, [*others, *kept])
                if pop:
                    kept.pop()
                at = after


_ADJUST = (
    rb"\x48\x83[\xc4\xec].|\x48\x81\xc4.{4}|[\x48\x49]\x8d(?:[\x60-\x67]\x24?.|[\xa0-\xa7]\x24?.{4})"
    rb"|\x48\x8b\xe5|\x48\x89\xec"
)
"""Pattern of instructions that set rsp in an epilogue: add $n,%rsp; sub $-128,%rsp; lea n(%reg),%rsp; mov %rbp,%rsp."""
_JUMP = rb"\xe9.{4}|\xeb."
_RETURN = rb"[\xf2\xf3]?(?:\xc3|\xc2|" + _JUMP + rb"|[\x40-\x4f]?\xff[\x20-\x27\x60-\x67\xa0-\xa7\xe0-\xe7])"
"""Pattern of instructions that leave a function: a return, or a jump to another function."""


def _restores(adjust: bytes, frame: UnwoundFrame, top: int) -> bool:
    """Return True if an instruction sets the stack pointer to the given depth of a frame.

    Args:
        adjust: Bytes of the instruction, which matches _ADJUST.
        frame: The frame of the function.
        top: Distance in bytes from the stack pointer to the CFA after the instruction.
    """
    if adjust[1] in (0x83, 0x81):
        n = int.from_bytes(adjust[3:], "little", signed=True)
        return frame.depth - top == (-n if adjust[2] == 0xEC else n)
    if adjust[1] in (0x8B, 0x89):
        return frame.base == 5 and frame.base_offset == top
    register = (adjust[2] & 7) + 8 * (adjust[0] & 1)
    place = 4 if register & 7 == RSP else 3
    n = int.from_bytes(adjust[place:], "little", signed=True)
    if len(adjust) - place not in (1, 4):
        return False
    if register == RSP:
        return frame.depth - top == n
    return register == frame.base and frame.base_offset - top == n


def _instruction_starts(code: bytes) -> set[int]:
    """Return the offsets in code at which instructions begin, up to the first instruction of unknown length."""
    found: set[int] = set()
    at = 0
    while at < len(code):
        found.add(at)
        size = instruction_length(code[at : at + 16], 0, wide=True)
        if not size:
            break
        at += size
    return found


def _step(word: int, code: UnwindCode, more: Sequence[int], frame_offset: int) -> PrologueStep | None:
    """Convert an operation of unwind info to a PrologueStep, or return None if it changes nothing that unwinding
    needs.
    """
    after, operand = word & 0xFF, word >> 12
    n = sum(unit << 16 * place for place, unit in enumerate(more))
    if code in (UnwindCode.PUSH_NONVOL, UnwindCode.SAVE_NONVOL, UnwindCode.SAVE_NONVOL_FAR):
        return PrologueStep(after, code, operand, 8 * n if code is UnwindCode.SAVE_NONVOL else n)
    if code is UnwindCode.ALLOC_SMALL:
        return PrologueStep(after, code, 0, 8 * operand + 8)
    if code is UnwindCode.ALLOC_LARGE:
        return PrologueStep(after, code, 0, n if operand else 8 * n)
    if code is UnwindCode.SET_FPREG:
        return PrologueStep(after, code, 0, 16 * frame_offset)
    if code is UnwindCode.PUSH_MACHFRAME:
        return PrologueStep(after, code, 0, WORD if operand else 0)
    return None


def _insert(starts: list[int], rules: list[Rule], first: int, after: int, rule: Rule, end: int) -> None:
    """Insert a row into the rows of a function: its rule holds from `first` up to `after`. From there on, the rule that
    held before it holds again.
    """
    at = bisect_right(starts, first)
    before = rules[at - 1]
    if at and starts[at - 1] == first:
        rules[at - 1] = rule
    else:
        starts.insert(at, first)
        rules.insert(at, rule)
        at += 1
    if after < end and (at == len(starts) or starts[at] > after):
        starts.insert(at, after)
        rules.insert(at, before)


def open_pdata(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> Pdata | None:
    """Return the function table of a Windows x64 module, or None if it has none.

    Raises:
        FormatError: The table cannot be read.
    """
    table = file.unwind_table(SECTION)
    return None if table is None or arch.name != ARCH else Pdata(file, table, arch)
