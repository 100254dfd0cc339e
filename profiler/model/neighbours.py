"""Who calls a function, and what it calls: each sample that runs through it counts once, however often it recurs."""

from __future__ import annotations

import re
from collections import Counter

from pyprof.model.call_tree import Call
from pyprof.records import dataclass

FunctionWords = tuple[str, str]
"""(name, module) of a function; the name is "" where there is none: of the outermost one, or of the function itself."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """total: the primary value of all samples through the function. callers: of its outermost calls, callees: of its
    innermost ones; both add up to the total. names: the functions that were meant.
    """

    total: int
    callers: tuple[tuple[FunctionWords, int], ...]
    callees: tuple[tuple[FunctionWords, int], ...]
    names: frozenset[str]


NOBODY: FunctionWords = ("", "")


def neighbours(tree: Call, text: str) -> Neighbours:
    """text: a function's name; where none has it, an expression that is a whole name, else one that is found in names.
    Raises re.error.
    """
    names = named({call.name for depth, call in tree.walk() if depth}, text)
    callers: Counter[FunctionWords] = Counter()
    callees: Counter[FunctionWords] = Counter()
    path: list[tuple[Call, bool, FunctionWords | None]] = []
    for depth, call in tree.walk():
        del path[depth:]
        above, inside, called = path[-1] if path else (None, False, None)
        meant = depth > 0 and call.name in names
        if meant:
            called = NOBODY
            if not inside:
                callers[_row(above) if above is not None and depth > 1 else NOBODY] += call.total
        elif called == NOBODY:
            called = _row(call)
        if called is not None:
            callees[called] += call.own
        path.append((call, inside or meant, called))
    return Neighbours(sum(callers.values()), _sorted(callers), _sorted(callees), frozenset(names))


def named(known: set[str], text: str) -> set[str]:
    """The names that a text means; see neighbours(). Raises re.error."""
    if text in known:
        return {text}
    pattern = re.compile(text)
    return {name for name in known if pattern.fullmatch(name)} or {name for name in known if pattern.search(name)}


def _row(call: Call) -> FunctionWords:
    return call.name, call.module


def _sorted(found: Counter[FunctionWords]) -> tuple[tuple[FunctionWords, int], ...]:
    return tuple(sorted(((row, value) for row, value in found.items() if value), key=lambda each: (-each[1], each[0])))
