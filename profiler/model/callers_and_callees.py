"""Callers and callees of a function. Each sample through the function counts once, even if the function recurs."""

from __future__ import annotations

import re
from collections import Counter

from pyprof.model.call_tree import Call
from pyprof.records import dataclass

FunctionWords = tuple[str, str]
"""Pair (name, module) of a function. The name is "" for no caller, and for the function itself among the callees."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Callers and callees of a function with their costs. Both add up to the total.

    Attributes:
        total: Primary value of all samples through the function.
        callers: Callers of its outermost calls.
        callees: Callees of its innermost calls.
        names: The functions that match the text.
    """

    total: int
    callers: tuple[tuple[FunctionWords, int], ...]
    callees: tuple[tuple[FunctionWords, int], ...]
    names: frozenset[str]


NOBODY: FunctionWords = ("", "")


def neighbours(tree: Call, text: str) -> Neighbours:
    """Find the callers and callees of the functions that a text names.

    Args:
        tree: The call tree of the profile.
        text: Name of a function. If no function has it, a regular expression that matches a whole name, or else a part
            of one.

    Raises:
        re.error: The expression is invalid.
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


def named(names: set[str], text: str) -> set[str]:
    """Return the function names that a text matches (see neighbours()).

    Raises:
        re.error: The expression is invalid.
    """
    if text in names:
        return {text}
    pattern = re.compile(text)
    return {name for name in names if pattern.fullmatch(name)} or {name for name in names if pattern.search(name)}


def _row(call: Call) -> FunctionWords:
    return call.name, call.module


def _sorted(found: Counter[FunctionWords]) -> tuple[tuple[FunctionWords, int], ...]:
    return tuple(sorted(((row, value) for row, value in found.items() if value), key=lambda each: (-each[1], each[0])))
