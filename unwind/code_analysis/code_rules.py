"""Unwind rules of x86-64 functions without unwind tables, from the analysis of their code.

A function is analysed when a pc first needs it. Its rows are kept with the file, so that all processes and recordings
of the file share them.

native/flow analyses the functions, or Python code does where there is no native code.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile, Segment
from pyprof.unwind.code_analysis.analysed_code import AnalysedCode, AnalysedPieces
from pyprof.unwind.code_analysis.cfa_and_register_state import AT_CFA, AT_POINTER, NOT_KNOWN, FrameRow, with_sp
from pyprof.unwind.code_analysis.function_analysis_bindings import MAX_SIZE, NativeFlow, drop_memory
from pyprof.unwind.code_analysis.function_index import FunctionIndex
from pyprof.unwind.code_analysis.instruction_states import (
    Code,
    FunctionStates,
    Outline,
    Run,
    called_function,
    called_slot,
    end_of_padding,
    has_prologue,
    is_padding,
)
from pyprof.unwind.code_analysis.proved_instructions import find_proved
from pyprof.unwind.code_analysis.x86_control_flow import analyse
from pyprof.unwind.code_analysis.x86_instruction_decoder import CALLEE_SAVED, decode
from pyprof.unwind.dwarf_expressions import encode_deref, encode_plus, encode_plus_register, encode_register_plus
from pyprof.unwind.native_unwinder import find_library
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule


class PythonFlow:
    """The analysis of functions in one code segment, implemented in Python. NativeFlow, implemented in C, has the same
    methods and results.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self._states = FunctionStates(0)

    def analyse(self, start: int, depth: int) -> Outline | None:
        """Analyse the machine code of a function, and return its outline, or None if the code contradicts itself.

        Args:
            start: First address of the function.
            depth: 0, or 1 if the function is analysed only because a function under analysis calls it.
        """
        states = analyse(self._code, start)
        if states is None:
            return None
        if depth == 0:
            self._states = states
        return Outline(states.returns, states.end_of_first_part(self._code))

    def prove(self, returns: Callable[[int], bool]) -> list[Run]:
        """Return the unwind rules of the function that was analysed last, for those instructions whose stack depth is
        proved.

        Args:
            returns: Returns True for the address of a call if the called function is known to return.
        """
        keep_proved(self._states, returns)
        return self._states.runs()


def keep_proved(states: FunctionStates, returns: Callable[[int], bool]) -> None:
    """Remove from a function's states the instructions whose stack depth is not proved.

    An instruction that sets rsp from rbp proves the value of rbp before it, but not that of rsp. The CFA of the
    instructions before it is then computed without rsp.

    Args:
        states: The states of the function, which are changed in place.
        returns: Returns True for the address of a call if the called function is known to return.
    """
    known = states.known
    exact, proved = find_proved(states.start, known, states.successors, returns)
    for start in [start for start in known if start not in exact]:
        state = known[start].state
        if not state.outermost:
            state = with_sp(state, None, None)
        if start in proved and state.has_cfa:
            known[start] = known[start]._replace(state=state)
        else:
            del known[start]


MAX_GUESSES = 16
"""Maximum number of presumed function starts that are tried, one after another, to find the function that covers a
pc.
"""

MAX_DISTANCE = 8192
"""Maximum distance in bytes before a pc at which the start of its function is guessed, where nothing states the
start.
"""

IDLE_S = 5.0
"""Time in seconds without an analysis after which the copy of a file's code is freed. A program's code may be 30 MB."""

_ENDS = (b"\x00", b"\x90", b"\xcc", b"\xc3")
"""Byte values that may stand directly before the aligned start of a function: padding or a return instruction."""

_COLUMN = (0, 2, 1, 3, 7, 6, 4, 5, *range(8, 16))
"""Register column in the x86-64 Arch, which is the DWARF number, by the register's number in the instruction set."""


class CodeRules:
    """The unwind rules of one file that follow from its machine code. Functions are analysed when a pc first needs
    them.
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
        self._index = FunctionIndex(file, debug, extents)
        self._pieces = AnalysedPieces()
        self._analysed: dict[int, int] = {}
        self._rules: dict[FrameRow, Rule] = {}
        self._opened: dict[int, tuple[Code, NativeFlow | PythonFlow]] = {}
        self._returning: dict[int, bool] = {}
        self._used = 0.0

    def piece_at(self, svma: int) -> AnalysedCode | None:
        """Return the analysed code that covers an address, with its unwind rules. Analyse its function if necessary.
        None if the analysis finds no rules.
        """
        found = self.known_piece(svma)
        for start in (self._index.before(svma), self._index.certain_before(svma)) if found is None else ():
            found = found or self._follow_functions(start, svma)
        return found or self._try_aligned(svma)

    def _follow_functions(self, start: int | None, svma: int) -> AnalysedCode | None:
        """Analyse the function at `start`, and then those after it, until one covers the address `svma`. Return the
        code with unwind rules at that address, or None.
        """
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
        """Guess the start of the function that covers an address: analyse the code from each aligned address before it.
        Return the code with unwind rules at the address, or None.
        """
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
        """Return True if another function jumps to an address after it has removed its frame (a tail call). Then a
        function begins at the address.
        """
        for at in self._index.jumps_to(start)[:MAX_GUESSES]:
            origin = self._index.before(at)
            if origin is None or not self._index.is_certain(origin) or self._analyse(origin) == 0:
                continue
            code = self.known_piece(at)
            if code is None or code.function == start:
                continue
            rule = code.rows.rules[bisect_right(code.rows.starts, at) - 1]
            if (rule.cfa_reg, rule.cfa_off, rule.regs) == (self._arch.sp, 8, ()):
                return True
        return False

    def drop_idle_code(self, now: float) -> None:
        """Free the copy of the file's code if no function was analysed in the last IDLE_S seconds. The next analysis
        reads the code again.

        Args:
            now: Current monotonic time in seconds.
        """
        if self._opened and now >= self._used + IDLE_S:
            self._opened.clear()
            drop_memory()

    def known_piece(self, svma: int) -> AnalysedCode | None:
        """Return the analysed code that covers an address, or None if its function was not analysed before. Analyse
        nothing.
        """
        return self._pieces.find(svma)

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
        self._used = time.monotonic()
        code, flow = self._open(segment)
        start = start if self._index.is_named(start) else end_of_padding(code, start)
        outline = flow.analyse(start, 0)
        named = self._index.is_certain(start) or (self._index.is_named(start) and has_prologue(code, start))
        if outline is None or not (outline.returns or named):
            return 0
        self._analysed[begin] = outline.end
        runs = flow.prove(lambda call: self._returns(call, code, flow))
        self._store(runs, code, start, outline.returns > 0 and has_prologue(code, start))
        return outline.end

    def _returns(self, call: int, code: Code, flow: NativeFlow | PythonFlow) -> bool:
        """Return True if the function that is called by the instruction at an address is known to return.

        An imported function returns unless it has a name such as abort, or a function begins directly after the call.
        """
        instruction = decode(code.data, call - code.base)
        assert instruction is not None
        target = called_function(instruction, call)
        slot = called_slot(code, instruction, call)
        if slot is not None:
            end = end_of_padding(code, call + instruction.size)
            return self._index.imported.get(slot) is True and not (code.may_be_start(end) or has_prologue(code, end))
        if target is None or not self._index.is_named(target):
            return False
        if target not in self._returning:
            outline = flow.analyse(target, 1)
            self._returning[target] = outline is not None and outline.returns > 0
        return self._returning[target]

    def _open(self, segment: Segment) -> tuple[Code, NativeFlow | PythonFlow]:
        """Return the code of a segment, and the object that analyses its functions. Both are cached."""
        if segment.vaddr not in self._opened:
            code, library = self._code(segment), find_library()
            if library is None or segment.filesz > MAX_SIZE:
                self._opened[segment.vaddr] = code, PythonFlow(code)
            else:
                self._opened[segment.vaddr] = code, NativeFlow(library, self._file, segment, code.data, self._index)
        return self._opened[segment.vaddr]

    def _code(self, segment: Segment) -> Code:
        end = segment.vaddr + segment.filesz

        def next_start(at: int) -> int:
            found = self._index.limit(at)
            return end if found is None else min(found, end)

        def read(svma: int, size: int) -> bytes:
            return bytes(self._file.at_svma(svma, size))

        entry = self._file.entry
        data = self._file.at_svma(segment.vaddr, segment.filesz)
        index = self._index
        return Code(
            data,
            segment.vaddr,
            next_start,
            read,
            lambda at: at == entry,
            index.is_certain,
            lambda at: index.is_certain(at) or index.is_named(at),
            lambda slot: self._index.imported.get(slot) is False,
        )

    def _store(self, runs: Sequence[Run], code: Code, function: int, pushes: bool) -> None:
        """Store the unwind rules of a function's code. Padding between parts of the function gets the rule of the code
        before it.
        """
        starts: list[int] = []
        rules: list[Rule] = []
        end = 0
        for start, after, row in runs:
            rule = self._rule(row)
            if starts and end != start and not is_padding(code, end, start):
                self._pieces.add(
                    AnalysedCode(FunctionRows(starts[0], end, tuple(starts), tuple(rules)), function, pushes)
                )
                starts, rules = [], []
            if not rules or rule != rules[-1]:
                starts.append(start)
                rules.append(rule)
            end = after
        if starts:
            self._pieces.add(AnalysedCode(FunctionRows(starts[0], end, tuple(starts), tuple(rules)), function, pushes))

    def _rule(self, row: FrameRow) -> Rule:
        known = self._rules.get(row)
        if known is None:
            known = self._rules[row] = make_rule(row, self._arch)
        return known


def make_rule(row: FrameRow, arch: Arch) -> Rule:
    """Convert a FrameRow, the result of the code analysis, to a Rule, the form that the unwinders use."""
    if row.outermost:
        return Rule(arch.sp, 0, UNDEFINED)
    regs = []
    for at, register in enumerate(CALLEE_SAVED):
        kind, pointer, offset = row.saved[3 * at : 3 * at + 3]
        if kind == AT_CFA:
            regs.append((_COLUMN[register], RegRule(RegKind.AT_CFA, offset)))
        elif kind == AT_POINTER:
            regs.append((_COLUMN[register], RegRule(RegKind.AT_REG, offset, _COLUMN[pointer])))
        elif kind == NOT_KNOWN:
            regs.append((_COLUMN[register], UNDEFINED))
    ra = RegRule(RegKind.AT_CFA, -8)
    if row.pointer < 0:
        return Rule(_COLUMN[row.register], row.offset, ra, tuple(regs))
    place = encode_register_plus(_COLUMN[row.pointer], row.place)
    if row.index_register >= 0:
        place = encode_plus_register(place, _COLUMN[row.index_register], row.scale)
    return Rule(-1, 0, ra, tuple(regs), cfa_expr=encode_plus(encode_deref(place), row.distance))
