"""A profile as a tree of function calls. Addresses of one function under the same callers are one node.

without_recursion() collapses direct recursion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.analysis.function_costs import Function, functions_of
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import FrameKind, Profile


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One function under one chain of callers in a profile. A marker counts as a function.

    Attributes:
        name: Name of the function, never "".
        module: Name of its file as users call it, "" if it is unknown.
        kind: Kind of its frames.
        own: The primary value (nanoseconds) of samples in the function itself.
        total: The primary value of samples in the function and its callees.
        children: The calls that it makes, most expensive first.
    """

    name: str
    module: str
    kind: FrameKind
    own: int
    total: int
    children: tuple[Call, ...] = field(repr=False)

    def walk(self) -> Iterator[tuple[int, Call]]:
        """Yield (depth, call) for this call of the call tree and all calls below it, each before its callees."""
        todo: list[tuple[int, Call]] = [(0, self)]
        while todo:
            depth, call = todo.pop()
            yield depth, call
            todo.extend((depth + 1, child) for child in reversed(call.children))


def call_tree(profile: Profile) -> Call:
    """Build the tree of function calls of a profile. Its root stands for the whole profile and has its title. Calls
    without samples are left out.
    """
    ids: dict[tuple[Function, str], int] = {}
    rows: list[list[int]] = []
    for frame in profile.frames:
        found = functions_of(profile, frame) or [(Function("", frame.title, frame.kind), "")]
        rows.append([ids.setdefault(entry, len(ids)) for entry in found])
    frame_of, tree = profile.frame.tolist(), Tree()
    leaves, inverse = np.unique(profile.stack, return_inverse=True)
    sums = np.zeros(len(leaves), np.int64)
    np.add.at(sums, inverse, profile.values[:, -1])
    place = rewrite(profile.parent.tolist(), lambda node: rows[frame_of[node]], tree, leaves.tolist())
    own = [0] * len(tree.parent)
    for leaf, value in zip(leaves.tolist(), sums.tolist(), strict=True):
        own[place[leaf]] += value
    return _calls(tree, own, list(ids), profile.title)


def _calls(tree: Tree, own: list[int], functions: list[tuple[Function, str]], title: str) -> Call:
    total = list(own)
    below: list[list[Call]] = [[] for _ in own]
    for node in range(len(own) - 1, -1, -1):
        children = tuple(sorted(below[node], key=lambda call: (-call.total, call.name)))
        below[node] = []
        if not node:
            return Call(title, "", FrameKind.MARKER, own[0], total[0], children)
        function, module = functions[tree.frame[node]]
        call = Call(function.name, module, function.kind, own[node], total[node], children)
        total[tree.parent[node]] += total[node]
        below[tree.parent[node]].append(call)
    raise AssertionError("a tree has a root")


def without_recursion(profile: Profile) -> Profile:
    """Return a profile in which only the outermost of consecutive frames of the same functions remains."""
    functions = [tuple(functions_of(profile, frame)) for frame in profile.frames]
    parent, frame = profile.parent.tolist(), profile.frame.tolist()
    tree = Tree()

    def kept(node: int) -> tuple[int, ...]:
        up = parent[node]
        again = up > 0 and functions[frame[node]] and functions[frame[node]] == functions[frame[up]]
        return () if again else (frame[node],)

    place = np.array(rewrite(parent, kept, tree), np.int32)
    return replace(
        profile,
        parent=np.array(tree.parent, np.int32),
        frame=np.array(tree.frame, np.int32),
        stack=place[profile.stack],
    )


FunctionWords = tuple[str, str]
"""Pair (name, module) that names a caller or a callee of a function. The name is "" for the caller of an outermost
function, and for a function's own cost among its callees.
"""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The callers and callees of one function, each with its cost. The costs of the callers add up to the function's
    total cost, and so do those of the callees.

    Attributes:
        total: Primary value of all samples through the function, such as nanoseconds.
        callers: Callers of its outermost calls.
        callees: Callees of its innermost calls.
        names: Names of the functions that were searched for.
    """

    total: int
    callers: tuple[tuple[FunctionWords, int], ...]
    callees: tuple[tuple[FunctionWords, int], ...]
    names: frozenset[str]


NOBODY: FunctionWords = ("", "")


def neighbours(tree: Call, text: str) -> Neighbours:
    """Return the callers and callees of the functions that a name or pattern selects.

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
    """Return the names among `names` that a text selects: an equal name, else those that the text matches as a regular
    expression.

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
