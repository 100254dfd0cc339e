"""Unwind rules of functions without unwind tables, from the analysis of their code.

A function is analysed when a pc first needs it. Its rows are kept with the file, so that all processes and recordings
of the file share them.

Proofs of the states of code behind calls.

A call may not return. Behind it then begins the code of another path, such as a landing pad, or another function. The
analysis of a function assumes that each call returns, so that the code behind it has the depth of the call. What this
code leads to proves that: a return at the right depth, or code of the same depth that is reached without the call.
Otherwise the called function must be known to return.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile, Segment
from pyprof.records import dataclass
from pyprof.unwind.code_analysis.function_index import FunctionIndex
from pyprof.unwind.code_analysis.x86_flow import (
    KEPT,
    LOST,
    Code,
    FrameState,
    FunctionStates,
    analyse,
    called_function,
    called_slot,
    end_of_padding,
    has_prologue,
    is_padding,
)
from pyprof.unwind.code_analysis.x86_instructions import CALLEE_SAVED, decode
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule

_Graph = Mapping[int, Iterable[int]]
"""Starts of ranges, by the start of the range that leads to them or that they lead to."""


def keep_proved(states: FunctionStates, returns: Callable[[int], bool]) -> None:
    """Drop the ranges of a function whose state is not proved.

    Code that takes rsp from rbp proves only rbp before it. The CFA is then computed from rbp.

    Args:
        states: The ranges.
        returns: Returns True for the address of a call if the called function is known to return.
    """
    ranges = states.ranges
    after = {start: _next_ranges(states, start) for start in states.starts}
    within = {start: after[start] if not ranges[start].calls else () for start in states.starts}
    begin = states.find(states.start)  # None if the code at the start has no known state
    evidence = _reach([] if begin is None else [begin], within)
    if len(evidence) == len(ranges):
        return
    evidence |= {start for start, found in ranges.items() if found.leaves}
    before, before_resets = _inverse(after, ()), _inverse(after, {s for s, found in ranges.items() if found.resets})
    calls = [start for start in states.starts if ranges[start].calls]

    def with_calls(found: set[int]) -> set[int]:
        while more := [s for s in calls if s in found and not found.issuperset(after[s]) and returns(s)]:
            found = _reach([*found, *(target for start in more for target in after[start])], within)
        return found

    proved = with_calls(_reach(_reach(evidence, before), within))
    reset = [target for start in proved if ranges[start].resets for target in after[start]]
    exact = with_calls(_reach(_reach([*evidence, *reset], before_resets), within))
    for start in [start for start in states.starts if start not in exact]:
        found = ranges[start]
        if start in proved and found.state.base is not None:
            ranges[start] = found._replace(state=found.state._replace(sp=None))
        else:
            del ranges[start]
    states.starts[:] = [start for start in states.starts if start in ranges]


def _next_ranges(states: FunctionStates, start: int) -> list[int]:
    """Return the starts of the ranges of instructions that may run directly after a range: those at its jump targets,
    and the range behind it.
    """
    found = states.ranges[start]
    targets = found.targets if found.ends else (found.end, *found.targets)
    return [at for target in targets if (at := states.find(target)) is not None]


def _inverse(graph: Mapping[int, Iterable[int]], without: Iterable[int]) -> dict[int, list[int]]:
    """Return a graph with all edges reversed, without those that leave some ranges."""
    found: dict[int, list[int]] = {}
    for start, targets in graph.items():
        for target in targets if start not in without else ():
            found.setdefault(target, []).append(start)
    return found


def _reach(starts: Iterable[int], graph: _Graph) -> set[int]:
    """Return all ranges to which some ranges lead, and those ranges."""
    found, waiting = set(starts), list(starts)
    while waiting:
        for target in graph.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


MAX_GUESSES = 16
"""Maximum number of functions without a known start that are tried one after another, for one pc."""

MAX_DISTANCE = 8192
"""Maximum number of bytes before a pc in which an unnamed function start is searched."""

_ENDS = (b"\x00", b"\x90", b"\xcc", b"\xc3")
"""Last byte of what stands before an aligned function: padding or a return."""

_COLUMN = dict(zip(CALLEE_SAVED, (3, 6, 12, 13, 14, 15), strict=True))
"""Column of each callee-saved register in the x86-64 Arch."""


@dataclass(frozen=True, slots=True)
class AnalysedCode:
    """Consecutive code of one function whose rules are known.

    Attributes:
        rows: Its unwind rows.
        function: First address of the function.
        pushes: The function saves a register at its start, and returns.
    """

    rows: FunctionRows
    function: int
    pushes: bool


class CodeRules:
    """The unwind rules that the code of one file proves."""

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
        self._index = FunctionIndex(file, debug, extents)
        self._pieces: dict[int, AnalysedCode] = {}
        self._starts: list[int] = []
        self._analysed: dict[int, int] = {}
        self._rules: dict[FrameState, Rule] = {}
        self._returning: dict[int, bool] = {}

    def piece_at(self, svma: int) -> AnalysedCode | None:
        """Return the code with known rules that covers an address, or None."""
        found = self.known_piece(svma)
        for start in (self._index.before(svma), self._index.certain_before(svma)) if found is None else ():
            found = found or self._follow_functions(start, svma)
        return found or self._try_aligned(svma)

    def _follow_functions(self, start: int | None, svma: int) -> AnalysedCode | None:
        """Analyse the function at a start and those behind it, until one of them covers an address."""
        for _ in range(MAX_GUESSES):
            if start is None or start > svma:
                break
            end = self._analyse(start)
            found = self.known_piece(svma)
            if found is not None or end <= start:
                return found
            start = end
        return None

    def _try_aligned(self, svma: int) -> AnalysedCode | None:
        """Try the aligned addresses before an address as starts of the function that covers it."""
        nearest = self._index.before(svma)
        first = max(nearest or 0, svma - MAX_DISTANCE)
        aligned = range(svma & -16, first, -16)
        called = [start for start in aligned if self._is_tail_called(start)]
        for start in called:
            self._index.add_certain(start)
            self._analysed.pop(start, None)
        behind = (start for start in aligned if bytes(self._file.at_svma(start - 1, 1)) in _ENDS)
        for start in (*called[:MAX_GUESSES], *islice(behind, MAX_GUESSES)):
            self._analyse(start)
            found = self.known_piece(svma)
            if found is not None:
                return found
        return None

    def _is_tail_called(self, start: int) -> bool:
        """Return True if a function that is known to begin elsewhere jumps to an address without a frame."""
        for at in self._index.jumps_to(start)[:MAX_GUESSES]:
            origin = self._index.before(at)
            if origin is None or origin not in self._index.certain or self._analyse(origin) == 0:
                continue
            code = self.known_piece(at)
            if code is None or code.function == start:
                continue
            rule = code.rows.rules[bisect_right(code.rows.starts, at) - 1]
            if (rule.cfa_reg, rule.cfa_off, rule.regs) == (self._arch.sp, 8, ()):
                return True
        return False

    def known_piece(self, svma: int) -> AnalysedCode | None:
        """Return the code that covers an address if its function was analysed before, or None."""
        at = bisect_right(self._starts, svma) - 1
        if at < 0:
            return None
        piece = self._pieces[self._starts[at]]
        return piece if svma < piece.rows.end else None

    def _analyse(self, begin: int) -> int:
        """Analyse the function at or after an address, and return where the code after it begins (0 if that is
        unknown).
        """
        if begin in self._analysed:
            return self._analysed[begin]
        self._analysed[begin] = 0
        start = begin
        segment = next((s for s in self._file.loads if s.executable and 0 <= start - s.vaddr < s.filesz), None)
        if segment is None:
            return 0
        code = self._code(segment)
        start = start if start in self._index.named else end_of_padding(code, start)
        states = analyse(code, start)
        named = start in self._index.certain or (start in self._index.named and has_prologue(code, start))
        if states is None or not (states.returns or named):
            return 0
        self._analysed[begin] = _end_of_first_part(states, code)
        keep_proved(states, lambda call: self._returns(call, code))
        self._store(states, code)
        return self._analysed[begin]

    def _returns(self, call: int, code: Code) -> bool:
        """Return True if the function that is called at an address is known to return.

        An imported function returns unless its name says that it does not, or another function follows the call.
        """
        instruction = decode(code.data, call - code.base)
        assert instruction is not None
        target = called_function(instruction, call)
        slot = called_slot(code, instruction, call)
        if slot is not None:
            end = end_of_padding(code, call + instruction.size)
            return self._index.imported.get(slot) is True and not (code.may_be_start(end) or has_prologue(code, end))
        if target is None or target not in self._index.named:
            return False
        if target not in self._returning:
            states = analyse(code, target)
            self._returning[target] = states is not None and states.returns > 0
        return self._returning[target]

    def _code(self, segment: Segment) -> Code:
        end = segment.vaddr + segment.filesz

        def next_start(at: int) -> int:
            found = self._index.limit(at)
            return end if found is None else min(found, end)

        def read(svma: int, size: int) -> bytes:
            return bytes(self._file.at_svma(svma, size))

        entry = self._file.entry
        data = self._file.at_svma(segment.vaddr, segment.filesz)
        certain, named = self._index.certain, self._index.named
        return Code(
            data,
            segment.vaddr,
            next_start,
            read,
            lambda at: at == entry,
            certain.__contains__,
            lambda at: at in certain or at in named,
            lambda slot: self._index.imported.get(slot) is False,
        )

    def _store(self, states: FunctionStates, code: Code) -> None:
        """Store the rules of a function. Padding between its parts has the rule of the code before it."""
        starts: list[int] = []
        rules: list[Rule] = []
        end = 0
        pushes = states.returns > 0 and has_prologue(code, states.start)
        for start in states.starts:
            found = states.ranges[start]
            rule = self._rule(found.state)
            if starts and end != start and not is_padding(code, end, start):
                self._store_piece(starts, rules, end, states, pushes)
                starts, rules = [], []
            if not rules or rule != rules[-1]:
                starts.append(start)
                rules.append(rule)
            end = found.end
        if starts:
            self._store_piece(starts, rules, end, states, pushes)

    def _store_piece(
        self, starts: list[int], rules: list[Rule], end: int, states: FunctionStates, pushes: bool
    ) -> None:
        """Store a piece, unless another function already has a part of it."""
        at = bisect_right(self._starts, starts[0])
        if at and starts[0] < self._pieces[self._starts[at - 1]].rows.end:
            return
        if at < len(self._starts) and self._starts[at] < end:
            return
        self._starts.insert(at, starts[0])
        self._pieces[starts[0]] = AnalysedCode(
            FunctionRows(starts[0], end, tuple(starts), tuple(rules)), states.start, pushes
        )

    def _rule(self, state: FrameState) -> Rule:
        known = self._rules.get(state)
        if known is None:
            known = self._rules[state] = make_rule(state, self._arch)
        return known


def make_rule(state: FrameState, arch: Arch) -> Rule:
    """Return the unwind rule of a state."""
    if state.outermost:
        return Rule(arch.sp, 0, UNDEFINED)
    regs = []
    for register, place in zip(CALLEE_SAVED, state.saved, strict=True):
        if place == LOST or (state.sp is not None and place < state.sp):
            regs.append((_COLUMN[register], UNDEFINED))
        elif place != KEPT:
            regs.append((_COLUMN[register], RegRule(RegKind.AT_CFA, place)))
    base = (arch.sp, -state.sp) if state.sp is not None else (arch.fp, -(state.base or 0))
    return Rule(*base, RegRule(RegKind.AT_CFA, -8), tuple(regs))


def _end_of_first_part(states: FunctionStates, code: Code) -> int:
    """Return where the code after a function begins, without the parts that the compiler placed apart."""
    end = states.start
    while end in states.ranges:
        end = states.ranges[end].end
        if end not in states.ranges:
            end = end_of_padding(code, end)
    return end
