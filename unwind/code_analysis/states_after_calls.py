"""Proofs of the states of code behind calls.

A call may not return. Behind it then begins the code of another path, such as a landing pad, or another function. The
analysis of a function assumes that each call returns, so that the code behind it has the depth of the call. What this
code leads to proves that: a return at the right depth, or code of the same depth that is reached without the call.
Otherwise the called function must be known to return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyprof.unwind.code_analysis.frame_state import with_sp
from pyprof.unwind.code_analysis.function_bounds import Code
from pyprof.unwind.code_analysis.function_states import FunctionStates, Outline, Run
from pyprof.unwind.code_analysis.x86_flow import analyse

MAX_EDGES = 1 << 18
"""Maximum number of control flow edges between the instructions of one function. A function with more gets no unwind
rule.
"""

_Graph = Mapping[int, Iterable[int]]
"""Addresses of instructions, by the address of the one that leads to them or that they lead to."""


class PythonFlow:
    """The analysis of the functions in one segment of code in Python. NativeFlow has the same methods and results."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._states = FunctionStates(0)

    def analyse(self, start: int, depth: int) -> Outline | None:
        """Analyse the function at an address, and return its outline, or None if its code contradicts itself.

        Args:
            start: The address.
            depth: 0, or 1 for a function that another one calls whose analysis is not finished.
        """
        states = analyse(self._code, start)
        if states is None:
            return None
        if depth == 0:
            self._states = states
        return Outline(states.returns, states.end_of_first_part(self._code))

    def prove(self, returns: Callable[[int], bool]) -> list[Run]:
        """Return the rules of the function that was analysed last, as far as they are proved.

        Args:
            returns: Returns True for the address of a call if the called function is known to return.
        """
        keep_proved(self._states, returns)
        return self._states.runs()


def keep_proved(states: FunctionStates, returns: Callable[[int], bool]) -> None:
    """Drop the instructions of a function whose state is not proved.

    Code that takes rsp from rbp proves only rbp before it. The CFA is then computed without rsp.

    Args:
        states: The instructions.
        returns: Returns True for the address of a call if the called function is known to return.
    """
    known = states.known
    after = {start: states.successors(start) for start in known}
    within = {start: after[start] if not known[start].calls else () for start in known}
    evidence = _reach([states.start] if states.start in known else [], within)
    if len(evidence) == len(known):
        return
    if sum(map(len, after.values())) > MAX_EDGES:
        known.clear()
        return
    evidence |= {start for start, found in known.items() if found.leaves}
    before, before_resets = _inverse(after, ()), _inverse(after, {s for s, found in known.items() if found.resets})
    calls = [start for start in known if known[start].calls]

    def with_calls(found: set[int]) -> set[int]:
        while more := [s for s in calls if s in found and not found.issuperset(after[s]) and returns(s)]:
            found = _reach([*found, *(target for start in more for target in after[start])], within)
        return found

    proved = with_calls(_reach(_reach(evidence, before), within))
    reset = [target for start in proved if known[start].resets for target in after[start]]
    exact = with_calls(_reach(_reach([*evidence, *reset], before_resets), within))
    for start in [start for start in known if start not in exact]:
        state = known[start].state
        if not state.outermost:
            state = with_sp(state, None, None)
        if start in proved and state.has_cfa:
            known[start] = known[start]._replace(state=state)
        else:
            del known[start]


def _inverse(graph: Mapping[int, Iterable[int]], without: Iterable[int]) -> dict[int, list[int]]:
    """Return a control flow graph with all edges reversed, without the edges that begin at some instructions."""
    found: dict[int, list[int]] = {}
    for start, targets in graph.items():
        for target in targets if start not in without else ():
            found.setdefault(target, []).append(start)
    return found


def _reach(starts: Iterable[int], graph: _Graph) -> set[int]:
    """Return the given instructions and all that can be reached from them in a control flow graph, by address."""
    found, waiting = set(starts), list(starts)
    while waiting:
        for target in graph.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found
