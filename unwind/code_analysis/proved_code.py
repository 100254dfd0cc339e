"""Proofs of the states of code behind calls.

A call may not return. Behind it then begins the code of another path, such as a landing pad, or another function. The
analysis of a function assumes that each call returns, so that the code behind it has the depth of the call. What this
code leads to proves that: a return at the right depth, or code of the same depth that is reached without the call.
Otherwise the called function must be known to return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyprof.unwind.code_analysis.x86_flow import FunctionStates

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
    """Return the starts of the ranges to which a range leads."""
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
