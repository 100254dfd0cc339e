"""The proof of stack depths: which instructions of an analysed function have a known stack pointer or frame pointer.

A call may not return. The analysis assumes that each call returns, so that the code after it has the stack depth of the
call. The later code proves this: a return at the right depth, or code that is reached without the call. Otherwise the
called function must be known to return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

MAX_EDGES = 1 << 18
"""Maximum number of control flow edges between the instructions of one function. A function with more gets no unwind
rule.
"""

_Graph = Mapping[int, Iterable[int]]
"""Control flow between instructions: for each instruction's address, the addresses of its successors (or of its
predecessors).
"""


class ControlFlow(Protocol):
    """The protocol of an analysed instruction, as the proof of stack depths reads it. InstructionState and
    VisitedInstruction implement it.
    """

    @property
    def leaves(self) -> bool: ...

    @property
    def calls(self) -> bool: ...

    @property
    def resets(self) -> bool: ...


def find_proved(
    start: int,
    known: Mapping[int, ControlFlow],
    successors: Callable[[int], list[int]],
    returns: Callable[[int], bool],
) -> tuple[set[int], set[int]]:
    """Find the instructions of a function whose stack depth is proved.

    An instruction that computes the stack pointer from the frame pointer proves the frame pointer before it, but not
    the stack pointer.

    Args:
        start: First address of the function.
        known: The analysed instructions of the function by their addresses.
        successors: Returns the analysed instructions that may run directly after the one at an address.
        returns: Returns True for the address of a call if the called function is known to return.

    Returns:
        (instructions with a proved stack pointer, instructions with a proved stack pointer or frame pointer), both
        empty if the function has too many edges.
    """
    after = {at: successors(at) for at in known}
    within = {at: after[at] if not known[at].calls else [] for at in known}
    evidence = _reach([start] if start in known else [], within)
    if len(evidence) == len(known):
        return evidence, evidence
    if sum(map(len, after.values())) > MAX_EDGES:
        return set(), set()
    evidence |= {at for at, found in known.items() if found.leaves}
    before, before_resets = _inverse(after, ()), _inverse(after, {at for at, found in known.items() if found.resets})
    calls = [at for at in known if known[at].calls]

    def with_calls(found: set[int]) -> set[int]:
        while more := [at for at in calls if at in found and not found.issuperset(after[at]) and returns(at)]:
            found = _reach([*found, *(target for at in more for target in after[at])], within)
        return found

    proved = with_calls(_reach(_reach(evidence, before), within))
    reset = [target for at in proved if known[at].resets for target in after[at]]
    return with_calls(_reach(_reach([*evidence, *reset], before_resets), within)), proved


def _inverse(graph: _Graph, without: Iterable[int]) -> dict[int, list[int]]:
    """Return a control flow graph with all edges reversed, without the edges that start at the excluded
    instructions.
    """
    found: dict[int, list[int]] = {}
    for start, targets in graph.items():
        for target in targets if start not in without else ():
            found.setdefault(target, []).append(start)
    return found


def _reach(starts: Iterable[int], graph: _Graph) -> set[int]:
    """Return the addresses of the given instructions and of all instructions that control can reach from them."""
    found, waiting = set(starts), list(starts)
    while waiting:
        for target in graph.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found
