"""The callers and callees of a row of the table, as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.cli.live.cost_totals import TopRow, frame_rows, process_row, thread_row
from pyprof.model.function_costs import START_UP
from pyprof.model.profile import Profile

MAX_LINES = 1000
LEAST = 0.005
"""Share of a row's value below which a branch of its tree of callers or callees is left out."""


class Step(NamedTuple):
    """One line of the tree of callers or callees.

    Attributes:
        indent: Number of forks above the line. An only child has the indent of its parent.
        value: Value of the stacks through this line.
        own: Value of the stacks that end here.
    """

    indent: int
    row: TopRow
    value: int
    own: int


class RowTree(NamedTuple):
    """The tree of callers or callees of one row of the table.

    Attributes:
        whole: Value of all samples.
        value: Value of the row's samples.
        steps: Lines of the tree.
    """

    whole: int
    value: int
    steps: Sequence[Step]


class _Node:
    def __init__(self) -> None:
        self.value = self.own = 0
        self.below: dict[TopRow, _Node] = {}


def opened(profile: Profile, table: str, row: TopRow, callers: bool) -> RowTree:
    """Build the tree of callers or callees of a row of the table.

    Args:
        callers: True for a tree from the row to the outermost functions, False for one of what the row calls.
    """
    mask = _of_row(profile, table, row)
    leaves, inverse = np.unique(profile.stack[mask], return_inverse=True)
    values = np.zeros(len(leaves), np.int64)
    np.add.at(values, inverse, profile.values[mask, -1])
    sums = dict(zip(leaves.tolist(), values.tolist(), strict=True))
    functions = [frame_rows(profile, frame, "function") for frame in profile.frames]
    keys = [frame_rows(profile, frame, table) for frame in profile.frames] if table in _FRAMES else None
    frame_of, parent = profile.frame.tolist(), profile.parent.tolist()
    root = _Node()
    for leaf, value in sums.items():
        path: list[tuple[TopRow, bool]] = []
        while leaf > 0:
            at = frame_of[leaf]
            meant = [key == row for key in keys[at]] if keys is not None else [True] * len(functions[at])
            path += zip(reversed(functions[at]), reversed(meant), strict=True)
            leaf = parent[leaf]
        _grow(root, _chosen([*reversed(path)], callers, keys is None), value)
    return RowTree(int(profile.values[:, -1].sum()), root.value, _steps(root))


_FRAMES = ("function", "module", "line", "native")


def _of_row(profile: Profile, table: str, row: TopRow) -> npt.NDArray[np.bool_]:
    if table in _FRAMES:
        return np.ones(len(profile.stack), np.bool_)
    row_of = thread_row if table == "thread" else process_row
    wanted = np.array([row_of(thread) == row for thread in profile.threads], np.bool_)
    found: npt.NDArray[np.bool_] = wanted[profile.thread]
    return found


def _chosen(path: Sequence[tuple[TopRow, bool]], callers: bool, whole: bool) -> list[TopRow] | None:
    """Return the part of a stack from a row's function inwards or outwards, without the functions that start every
    program.

    Args:
        whole: Use the whole stack.

    Returns:
        None if the stack does not contain the row.
    """
    meant = [at for at, (_, is_row) in enumerate(path) if is_row]
    if not meant:
        return [] if whole else None
    first = next((at for at, (row, _) in enumerate(path) if row.name not in START_UP), 0)
    first = min(first, meant[-1])
    names = [row for row, _ in path]
    if callers:
        return names[first : len(names) if whole else meant[-1] + 1][::-1]
    return names[first if whole else meant[0] :]


def _grow(root: _Node, path: Sequence[TopRow] | None, value: int) -> None:
    if path is None:
        return
    node = root
    node.value += value
    for row in path:
        node = node.below.setdefault(row, _Node())
        node.value += value
    node.own += value


def _steps(root: _Node) -> list[Step]:
    """Return the lines of a tree of callers or callees, most expensive first, each parent before its children."""
    found: list[Step] = []
    todo: list[tuple[int, TopRow, _Node]] = [*_below(root, 0, LEAST * root.value)]
    while todo and len(found) < MAX_LINES:
        indent, row, node = todo.pop()
        found.append(Step(indent, row, node.value, node.own))
        fork = len(node.below) > 1 or node.own > 0
        todo.extend(_below(node, indent + fork, LEAST * root.value))
    return found


def _below(node: _Node, indent: int, least: float) -> Iterator[tuple[int, TopRow, _Node]]:
    """Yield the children of a tree's node with at least the value `least`, the cheapest first."""
    for row, child in sorted(node.below.items(), key=lambda each: (each[1].value, each[0])):
        if child.value >= least:
            yield indent, row, child
