"""The states of one function's instructions: the place of the CFA before each, and the next instructions."""

from __future__ import annotations

from typing import NamedTuple

from pyprof.model.arch.x86_instructions import LONGEST
from pyprof.records import dataclass, field
from pyprof.unwind.code_analysis.frame_state import FrameRow, FrameState, make_row
from pyprof.unwind.code_analysis.function_bounds import Code, end_of_padding


class InstructionState(NamedTuple):
    """The state of a function's frame before one instruction, and where control goes after it.

    Attributes:
        size: Size of the instruction in bytes.
        state: The state of the frame before it.
        call: Address of the call on the path to it that is most likely not to return, None if there is no call.
        targets: Addresses in the function to which it jumps.
        ends: Control does not continue behind it.
        leaves: It returns or jumps to another function, and rsp is at the right depth for that.
        calls: It is a call, which may not return.
        resets: It takes rsp from rbp.
    """

    size: int
    state: FrameState
    call: int | None
    targets: tuple[int, ...] = ()
    ends: bool = False
    leaves: bool = False
    calls: bool = False
    resets: bool = False


Run = tuple[int, int, FrameRow]
"""Consecutive instructions that share one rule: (start, end, rule)."""


class Outline(NamedTuple):
    """A summary of a function before its rules are proved.

    Attributes:
        returns: Number of returns and tail calls at the right depth.
        end: Address at which the code after the function begins, without the parts that the compiler placed apart.
    """

    returns: int
    end: int


@dataclass(slots=True)
class FunctionStates:
    """The states of one function's instructions.

    Attributes:
        start: First address of the function.
        known: The state of each instruction, by its address.
        returns: Number of returns and tail calls at the right depth.
        unresolved: States at indirect jumps whose targets are unknown.
    """

    start: int
    known: dict[int, InstructionState] = field(default_factory=dict)
    returns: int = 0
    unresolved: list[FrameState] = field(default_factory=list)

    def find(self, at: int) -> int | None:
        """Return the start of the analysed instruction that covers an address, or None."""
        for start in range(at, at - LONGEST, -1):
            found = self.known.get(start)
            if found is not None:
                return start if at < start + found.size else None
        return None

    def successors(self, start: int) -> list[int]:
        """Return the analysed instructions that may run directly after another one."""
        found = self.known[start]
        targets = found.targets if found.ends else (start + found.size, *found.targets)
        return [at for target in targets if (at := self.find(target)) is not None]

    def runs(self) -> list[Run]:
        """Return the runs of consecutive instructions that share one unwind rule, ascending."""
        found: list[Run] = []
        for at in sorted(self.known):
            end, row = at + self.known[at].size, make_row(self.known[at].state)
            if found and found[-1][1] == at and found[-1][2] == row:
                found[-1] = (found[-1][0], end, row)
            else:
                found.append((at, end, row))
        return found

    def end_of_first_part(self, code: Code) -> int:
        """Return where the code after the function begins, without the parts that the compiler placed apart."""
        end = self.start
        while end in self.known:
            end += self.known[end].size
            if end not in self.known:
                end = end_of_padding(code, end)
        return end

    def copy(self) -> FunctionStates:
        return FunctionStates(self.start, dict(self.known), self.returns, self.unresolved[:])
