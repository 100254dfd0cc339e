"""The frame states of the instructions of one AArch64 function, along all paths.

analyse_aarch64() follows the control flow from the start of a function, as x86_control_flow does: it proves the result
or refuses. A call may not return. So the states of the code after a call need a proof: the code leads to a return with
the stack pointer and the link register of the entry, or to code that is reached without the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.unwind.code_analysis.aarch64_frame_state import (
    ENTRY,
    LR,
    Aarch64State,
    after_call,
    compute,
    merge,
    with_sp,
)
from pyprof.unwind.code_analysis.cfa_and_register_state import AnalysisLimitExceeded, Contradiction
from pyprof.unwind.code_analysis.proved_instructions import find_proved

MAX_INSTRUCTIONS = 1 << 15
"""Maximum number of instructions of one AArch64 function that are analysed."""

MAX_STEPS = 1 << 17
"""Maximum number of instructions that all attempts to analyse one AArch64 function visit."""

MAX_TRIALS = 64
"""Maximum number of attempts to analyse one AArch64 function. Also the maximum number of gaps and of frame states that
are tried for code that only indirect jumps reach.
"""

_PADDING = (0, 0xD503_201F)  # udf #0, nop


class Aarch64Code(NamedTuple):
    """The instructions of an AArch64 code segment, and the known facts about its functions.

    Attributes:
        words: The instructions, as numbers of 32 bits.
        base: Address of the first instruction.
        next_start: Returns the first certain function start above an address, or the end of the segment.
        is_start: Returns True for addresses at which a function certainly begins.
        is_entry: Returns True for the entry point of the program.
        never_returns: Returns True for the address of a function that is known not to return, such as abort's stub.
    """

    words: memoryview
    base: int
    next_start: Callable[[int], int]
    is_start: Callable[[int], bool]
    is_entry: Callable[[int], bool]
    never_returns: Callable[[int], bool]

    def word(self, at: int) -> int | None:
        """Return the instruction at an address, or None outside the segment."""
        offset = at - self.base
        if offset < 0 or offset & 3 or offset >> 2 >= len(self.words):
            return None
        return int(self.words[offset >> 2])


class VisitedInstruction(NamedTuple):
    """The frame state before one AArch64 instruction, and the instructions to which control goes after it.

    Attributes:
        state: The frame state before the instruction.
        call: Address of the call on the path to the instruction that is most likely not to return, or None.
        targets: Addresses to which the instruction may jump.
        ends: Control does not continue at the next instruction.
        leaves: The instruction returns or jumps to another function with the sp and the link register of the entry.
        calls: The instruction is a call.
        resets: The instruction computes sp from x29.
    """

    state: Aarch64State
    call: int | None
    targets: tuple[int, ...]
    ends: bool
    leaves: bool
    calls: bool
    resets: bool


@dataclass(slots=True)
class Aarch64Function:
    """The analysed instructions of one AArch64 function.

    Attributes:
        start: First address of the function.
        known: Each visited instruction by its address.
        returns: Number of returns and tail calls.
        unresolved: Frame states at indirect jumps whose targets are unknown.
    """

    start: int
    known: dict[int, VisitedInstruction] = field(default_factory=dict)
    returns: int = 0
    unresolved: list[Aarch64State] = field(default_factory=list)

    def successors(self, at: int) -> list[int]:
        found = self.known[at]
        targets = found.targets if found.ends else (at + 4, *found.targets)
        return [target for target in targets if target in self.known]

    def end(self, code: Aarch64Code) -> int:
        """Return the address after the function's first part and the padding behind it."""
        end = self.start
        while end in self.known:
            end += 4
            while end not in self.known and code.word(end) in _PADDING:
                end += 4
        return end


def begins_function(code: Aarch64Code, at: int) -> bool:
    """Return True if an AArch64 function most likely begins at an address: its first instruction looks like that, or
    its start is known.
    """
    word = code.word(at)
    if word is None or code.is_start(at):
        return True
    is_hint = word in (0xD503_233F, 0xD503_237F, 0xD503_245F)  # paciasp, pacibsp, bti c
    return is_hint or word & 0xFFC0_7FFF == 0xA980_7BFD or word & 0xFF80_03FF == 0xD100_03FF


def may_end(code: Aarch64Code, call: int) -> bool:
    """Return True if another function may begin directly after a call, so that the call may be the end of its
    function.
    """
    return code.word(call + 4) in (*_PADDING, None) or begins_function(code, call + 4)


def call_target(word: int, at: int) -> int | None:
    """Return the target of a bl instruction at an address, or None for any other instruction."""
    return at + 4 * _signed(word, 26) if word >> 26 == 0b100101 else None


def analyse_aarch64(code: Aarch64Code, start: int) -> Aarch64Function | None:
    """Find the frame states before all instructions of the AArch64 function at an address. Return None if its code
    contradicts itself, or if it is too long.
    """
    no_return: set[int] = set()
    budget = [MAX_STEPS]
    for _ in range(MAX_TRIALS):
        analysis = _Analysis(code, Aarch64Function(start), no_return, budget)
        try:
            analysis.follow([(start, ENTRY, None)])
            analysis.fill_gaps()
        except Contradiction as refused:
            call = refused.call
            if call is None or call in no_return or not (code.is_start(start) or may_end(code, call)):
                return None
            no_return.add(call)
            continue
        except AnalysisLimitExceeded:
            return None
        return analysis.function
    return None


_Path = tuple[int, Aarch64State, int | None]
"""A path that is still to be followed: its first address, the frame state there, and the call on the way to it that
most likely does not return (address or None).
"""


class _Analysis:
    """One attempt to find the frame states before all instructions of an AArch64 function.

    Attributes:
        function: The result so far.
    """

    def __init__(self, code: Aarch64Code, function: Aarch64Function, no_return: set[int], budget: list[int]) -> None:
        """Start an attempt to analyse one function.

        Args:
            code: The code.
            function: The result, which is empty at the start.
            no_return: Addresses of calls that do not return.
            budget: Number of instructions that may still be visited, in a list that all attempts share.
        """
        self.function = function
        self._code = code
        self._no_return = no_return
        self._budget = budget
        self._limit = code.next_start(function.start)
        self._is_sure = code.is_start(function.start)
        self._may_be_first = code.is_entry(function.start)
        self._waiting: list[_Path] = []
        self._joined = False

    def follow(self, waiting: list[_Path]) -> None:
        """Analyse the instructions on all paths from some addresses of a function."""
        self._waiting = waiting
        while self._waiting:
            self._follow_straight(*self._waiting.pop())

    def fill_gaps(self) -> None:
        """Analyse the code between known instructions that only indirect jumps reach, by trying the frame state of one
        such jump after another. A trial counts if it contradicts nothing and leads to a return or to known code.
        """
        tried: set[int] = set()
        while self.function.unresolved and len(tried) < MAX_TRIALS:
            gap = next((at for at in self._gaps() if at not in tried), None)
            if gap is None:
                return
            tried.add(gap)
            for state in self.function.unresolved[:MAX_TRIALS]:
                kept, known = self.function, dict(self.function.known)
                self._spend(len(known) // 16)
                self.function = Aarch64Function(kept.start, known, kept.returns, kept.unresolved[:])
                self._joined = False
                try:
                    self.follow([(gap, state, None)])
                except Contradiction:
                    self.function = kept
                    continue
                if self.function.returns > kept.returns or self._joined:
                    break
                self.function = kept

    def _gaps(self) -> list[int]:
        known, found = self.function.known, []
        order = sorted(at for at in known if self.function.start <= at < self._limit)
        self._spend(len(order) // 16)
        for at, after in zip(order, [*order[1:], self._limit], strict=True):
            begin = at + 4
            while begin < after and self._code.word(begin) in _PADDING:
                begin += 4
            if begin < after:
                found.append(begin)
        return found

    def _spend(self, steps: int) -> None:
        self._budget[0] -= steps
        if self._budget[0] < 0 or len(self.function.known) > MAX_INSTRUCTIONS:
            raise AnalysisLimitExceeded

    def _follow_straight(self, at: int, state: Aarch64State, call: int | None) -> None:
        """Analyse instructions from an address on, until the path ends or reaches analysed code with the same frame
        state.
        """
        known = self.function.known
        limit = self._limit if self.function.start <= at < self._limit else self._code.next_start(at)
        while (word := self._code.word(at)) is not None:
            self._spend(1)
            found = known.get(at)
            if found is not None:
                self._joined = True
                merged = found.state if found.state == state else merge(found.state, state)
                if merged is None:
                    raise Contradiction(call if found.call is None else found.call)
                if merged == found.state:
                    return
                state, call = merged, found.call
            elif at >= limit:
                return
            waiting, returns = len(self._waiting), self.function.returns
            following = self._step(word, at, state, call)
            is_call = _is_call(word)
            known[at] = VisitedInstruction(
                state,
                call,
                tuple(path[0] for path in self._waiting[waiting:]),
                following is None,
                self.function.returns > returns,
                is_call,
                word & 0xBF80_03FF == 0x9100_03BF,  # mov sp, x29 and the like
            )
            if following is None or not following.has_cfa:
                return
            if is_call and (call is None or not may_end(self._code, call) or may_end(self._code, at)):
                call = at
            at, state = at + 4, following

    def _step(self, word: int, at: int, state: Aarch64State, call: int | None) -> Aarch64State | None:
        """Return the frame state after an AArch64 instruction, or None if control does not continue at the next
        instruction.
        """
        if word >> 16 == 0 or word >> 21 in (0x6A1, 0x6A2):  # udf, brk, hlt
            return None
        if word >> 26 == 0b000101:  # b
            self._jump(at + 4 * _signed(word, 26), state, call)
            return None
        if word >> 24 == 0x54 or word & 0x7E00_0000 == 0x3400_0000:  # b.cond, cbz, cbnz
            self._jump(at + 4 * _signed(word >> 5, 19), state, call)
            return state
        if word & 0x7E00_0000 == 0x3600_0000:  # tbz, tbnz
            self._jump(at + 4 * _signed(word >> 5, 14), state, call)
            return state
        if _is_call(word):
            target = call_target(word, at)
            if not self._is_sure and state.can_return:
                raise Contradiction(call)  # this would lose the return address
            if at in self._no_return or (target is not None and self._code.never_returns(target)):
                return None
            return after_call(state)
        if word >> 25 == 0b1101011:
            self._leave(word, state, call)
            return None
        if state.outermost:
            return state
        if word & 0xFFE0_001F == 0xD400_0001:  # svc
            self._may_be_first = True
        elif self._may_be_first and word in (0xD280_001D, 0xAA1F_03FD):  # mov x29, 0
            return Aarch64State(outermost=True)
        return compute(word, state, call)

    def _jump(self, target: int, state: Aarch64State, call: int | None) -> None:
        inside = self.function.start <= target < self._limit
        if not inside and state.can_return:
            if not self._is_sure and not begins_function(self._code, target):
                raise Contradiction(call)  # a loop of the function that contains this code
            self.function.returns += 1  # a tail call
        elif inside or state.has_cfa:
            self._waiting.append((target, state, call))  # perhaps a part that the compiler placed apart

    def _leave(self, word: int, state: Aarch64State, call: int | None) -> None:
        """Record a return or an indirect jump in the result. If its frame state is wrong for a return, raise
        Contradiction.
        """
        is_return = word >> 21 & 15 == 2
        if state.can_return and not state.outermost and (is_return or self._is_sure):
            self.function.returns += 1
        if is_return:
            if (word >> 5 & 31 == LR or word & 31 == 31) and not (state.can_return or state.outermost):
                raise Contradiction(call)
        elif state not in self.function.unresolved and len(self.function.unresolved) < MAX_TRIALS:
            self.function.unresolved.append(state)


def _is_call(word: int) -> bool:
    return word >> 26 == 0b100101 or word & 0xFEFF_F000 == 0xD63F_0000


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)


def proved_states(
    function: Aarch64Function, returns: Callable[[int], bool] = lambda call: False
) -> dict[int, Aarch64State]:
    """Return the frame states before those instructions of an AArch64 function whose stack depth is proved, by address.

    The code after an instruction that sets sp from x29 proves x29 before that instruction, but not sp. Such a frame
    state has no sp.

    Args:
        function: The analysed function.
        returns: Returns True for the address of a call if the called function is known to return.
    """
    known = function.known
    exact, proved = find_proved(function.start, known, function.successors, returns)
    states = {at: known[at].state for at in exact}
    for at in proved - exact:
        state = known[at].state
        state = state if state.outermost else with_sp(state, None, None)
        if state.has_cfa:
            states[at] = state
    return states
