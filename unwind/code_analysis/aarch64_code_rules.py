"""Unwind rules of AArch64 functions without unwind tables, from the analysis of their code.

A function is analysed when a pc first needs it. Its rows are kept with the file, so that all processes and recordings
of the file share them.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable
from functools import partial

import numpy as np

from pyprof.model.arch import Arch
from pyprof.model.integer_array_operations import distinct
from pyprof.objfile.base import ObjectFile, Segment
from pyprof.unwind.code_analysis.aarch64_control_flow import (
    Aarch64Code,
    Aarch64Function,
    analyse_aarch64,
    call_target,
    proved_states,
)
from pyprof.unwind.code_analysis.aarch64_frame_state import FIRST_SAVED, FP, LR, SP, Aarch64State
from pyprof.unwind.code_analysis.analysed_code import AnalysedCode, AnalysedPieces
from pyprof.unwind.code_analysis.cfa_and_register_state import CFA, KEPT
from pyprof.unwind.code_analysis.code_rules import IDLE_S, MAX_GUESSES
from pyprof.unwind.code_analysis.function_index import (
    MAX_SCANNED,
    U64,
    ascending,
    imported_functions,
    is_among,
    symbols,
)
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule

_BTI_C = 0xD503_245F


class Aarch64CodeRules:
    """The unwind rules of one AArch64 file that follow from its machine code. It has the same methods as CodeRules, the
    class for x86-64.
    """

    def __init__(self, file: ObjectFile, debug: ObjectFile | None, arch: Arch, extents: Iterable[Extents]) -> None:
        """Create the rules of a file without analysing any function.

        Args:
            file: The file.
            debug: Its separate debug file.
            arch: The architecture.
            extents: Start and end addresses of the functions that each unwind table covers.
        """
        self._file = file
        self._arch = arch
        self._segments = [segment for segment in file.loads if segment.executable]
        self._opened: dict[int, Aarch64Code] = {}
        tables = list(extents)
        certain = [starts for starts, _ in tables]
        for each in (file, debug):
            certain += [symbols(each, name) for name in (".symtab", ".dynsym")] if each is not None else []
        certain += [_called(file, segment) for segment in self._segments]
        if file.entry:
            certain.append(np.array([file.entry], np.uint64))
        self._certain = ascending(certain)
        self._starts = ascending([*certain, *(ends for _, ends in tables)])
        self._imported = imported_functions(file)
        self._pieces = AnalysedPieces()
        self._ends: dict[int, int] = {}
        self._returning: dict[int, bool] = {}
        self._used = 0.0

    def piece_at(self, svma: int) -> AnalysedCode | None:
        """Return the analysed code that covers an address, with its unwind rules. Analyse its function if necessary.
        None if the analysis finds no rules.
        """
        found = self.known_piece(svma)
        at = bisect_right(self._starts, svma) - 1
        start = self._starts[at] if at >= 0 else None
        for _ in range(MAX_GUESSES):
            if found is not None or start is None or start > svma:
                break
            end = self._analyse(start)
            found = self.known_piece(svma)
            start = end if end > start else None
        return found

    def known_piece(self, svma: int) -> AnalysedCode | None:
        """Return the analysed code that covers an address, or None if its function was not analysed before."""
        return self._pieces.find(svma)

    def drop_idle_code(self, now: float) -> None:
        """Free the view of the file's code if no function was analysed in the last IDLE_S seconds.

        Args:
            now: Current monotonic time in seconds.
        """
        if self._opened and now >= self._used + IDLE_S:
            self._opened.clear()

    def _analyse(self, start: int) -> int:
        """Analyse the function at an address, and return the address at which the code after it begins, 0 if that is
        unknown.
        """
        if start in self._ends:
            return self._ends[start]
        self._ends[start] = 0
        code = self._open(start)
        function = analyse_aarch64(code, start) if code is not None else None
        if code is None or function is None or not (function.returns or is_among(self._certain, start)):
            return 0
        states = proved_states(function, lambda call: self._returns(code, call))
        self._store(function, states)
        self._ends[start] = function.end(code)
        return self._ends[start]

    def _returns(self, code: Aarch64Code, call: int) -> bool:
        """Return True if the function that a call instruction calls is known to return."""
        word = code.word(call)
        target = call_target(word, call) if word is not None else None
        if target is None:
            return False
        if target not in self._returning:
            slot = _slot(code, target)
            if slot is not None:
                self._returning[target] = self._imported.get(slot) is True
            else:
                found = analyse_aarch64(code, target)
                self._returning[target] = found is not None and found.returns > 0
        return self._returning[target]

    def _open(self, svma: int) -> Aarch64Code | None:
        """Return the code of the segment that contains an address, or None."""
        segment = next((s for s in self._segments if 0 <= svma - s.vaddr < s.filesz), None)
        if segment is None:
            return None
        self._used = time.monotonic()
        if segment.vaddr not in self._opened:
            data = self._file.at_svma(segment.vaddr, segment.filesz)
            words = data[: len(data) & ~3].cast("I")
            end = segment.vaddr + 4 * len(words)

            def next_start(at: int) -> int:
                found = bisect_right(self._starts, at)
                return min(self._starts[found], end) if found < len(self._starts) else end

            def never_returns(target: int) -> bool:
                return self._imported.get(_slot(code, target)) is False

            code = Aarch64Code(
                words,
                segment.vaddr,
                next_start,
                partial(is_among, self._certain),
                self._file.entry.__eq__,
                never_returns,
            )
            self._opened[segment.vaddr] = code
        return self._opened[segment.vaddr]

    def _store(self, function: Aarch64Function, states: dict[int, Aarch64State]) -> None:
        """Store the unwind rules of a function, in pieces of consecutive code."""
        rows: list[tuple[int, Rule]] = []
        end = -1
        for at in [*sorted(states), None]:
            if rows and at != end:
                starts, rules = zip(*rows, strict=True)
                rows_of_piece = FunctionRows(starts[0], end, starts, rules)
                self._pieces.add(AnalysedCode(rows_of_piece, function.start, pushes=True))
                rows = []
            if at is None or not has_return_address(states[at], function.known[at].calls):
                continue
            rule = make_aarch64_rule(states[at], self._arch)
            if not rows or rows[-1][1] != rule:
                rows.append((at, rule))
            end = at + 4


def has_return_address(state: Aarch64State, calls: bool) -> bool:
    """Return True if the frame's return address is known, or the frame has no caller.

    Args:
        state: The state of the frame before an instruction.
        calls: The instruction is a call. The function then needs its return address in the frame.
    """
    place = state.saved[LR - FIRST_SAVED]
    sp = state.distance(SP)
    is_in_frame = place.origin == CFA and (sp is None or place.offset >= sp)
    return state.outermost or is_in_frame or (place == KEPT and not calls)


def make_aarch64_rule(state: Aarch64State, arch: Arch) -> Rule:
    """Convert the state of an AArch64 frame to the unwind rule that follows from the state. Its CFA and its return
    address are known, or it is outermost.
    """
    if state.outermost:
        return Rule(arch.sp, 0, UNDEFINED)
    base = next(r for r in (SP, FP, *range(SP)) if state.distance(r) is not None)
    distance, sp = state.distance(base) or 0, state.distance(SP)
    regs = []
    for register, place in enumerate(state.saved, FIRST_SAVED):
        if place.origin == CFA and (sp is None or place.offset >= sp):
            regs.append((register, RegRule(RegKind.AT_CFA, place.offset)))
        elif place != KEPT:
            regs.append((register, UNDEFINED))
    rules = dict(regs)
    ra = rules.get(LR, RegRule(RegKind.REG_PLUS, 0, arch.lr))
    return Rule(base, -distance, ra, tuple(regs), pac=True)


def _slot(code: Aarch64Code, stub: int) -> int | None:
    """Return the address of the GOT slot through which the AArch64 code at an address jumps, if it is a PLT stub, or
    None.
    """
    word = code.word(stub)
    if word == _BTI_C:
        stub += 4
        word = code.word(stub)
    load = code.word(stub + 4)
    if word is None or load is None or word & 0x9F00_001F != 0x9000_0010 or load & 0xFFC0_03FF != 0xF940_0211:
        return None  # not adrp x16, page; ldr x17, [x16, #offset]
    pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    pages -= pages >> 20 << 21
    return (stub & -0x1000) + (pages << 12) + (load >> 10 & 0xFFF) * 8


def _called(file: ObjectFile, segment: Segment) -> U64:
    """Return those addresses in a segment that `bl` instructions call and that follow the end of other code.

    Other addresses are not used: a segment may contain data, some of which looks like a call.
    """
    data = file.at_svma(segment.vaddr, min(segment.filesz, MAX_SCANNED))
    words = np.frombuffer(data[: len(data) & ~3], "<u4")
    at = np.flatnonzero(words >> 26 == 0b100101)
    distance = (words[at] & 0x3FF_FFFF).astype(np.int64)
    targets = at + distance - (distance >> 25 << 26)
    targets = distinct(targets[(targets >= 0) & (targets < len(words))])
    before = words[np.maximum(targets - 1, 0)]
    ends = (before >> 26 == 0b000101) | (before >> 26 == 0b100101) | (before >> 25 == 0b1101011)
    ends |= (before == 0xD503_201F) | (before >> 16 == 0) | (before >> 21 == 0x6A1)  # nop, udf, brk
    addresses: U64 = (targets[ends] * 4 + segment.vaddr).astype(np.uint64)
    return addresses
