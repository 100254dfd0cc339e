"""Costs of functions, threads, processes, modules and lines in the windows of `pyprof top`, and the callers and callees
of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.cli.arguments import TABLES
from pyprof.cli.terminal_tables import by_caller
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.analysis.function_costs import START_UP, TreeSums, functions_of
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo

MAX_ROWS = 50_000
"""Maximum number of rows of one table of costs. Beyond it, the cheapest rows are dropped."""


class TopRow(NamedTuple):
    """The identity of a row in a table of costs of `pyprof top`. Code without a known source line is a row of its
    function.

    Attributes:
        note: The module of a function, the function of a line, the process of a thread.
        number: The tid of a thread, the pid of a process, otherwise 0.
    """

    name: str
    note: str
    number: int = 0


class RowCost(NamedTuple):
    """The cost of a row in a table of `pyprof top`, as sums of the samples' primary value.

    Attributes:
        own: Value of samples whose innermost frame belongs to the row.
        total: Value of samples with a frame of the row anywhere on the stack.
    """

    own: int
    total: int


Table = Mapping[TopRow, RowCost]


@dataclass(frozen=True, slots=True)
class Tally:
    """The costs of functions, threads and processes in one or more windows of `pyprof top`.

    Attributes:
        value: Sum of the values of all samples.
        tables: Costs by row for each table, by the name in TABLES.
    """

    duration_ns: int
    value: int
    samples: int
    tables: Mapping[str, Table]


NOTHING = Tally(0, 0, 0, {table: {} for table in TABLES})


def tally(profile: Profile) -> Tally:
    """Compute the costs of functions, threads and processes in one window of `pyprof top`."""
    tables = {table: _by_frames(profile, table) for table in ("module", "line", "native")}
    tables["function"] = _by_frames(by_caller(profile), "function")
    spent = np.zeros(len(profile.threads), np.int64)
    np.add.at(spent, profile.thread, profile.values[:, -1])
    for table in ("thread", "process"):
        tables[table] = _by_threads(profile, spent.tolist(), table)
    return Tally(profile.duration_ns, profile.total, len(profile.stack), tables)


def together(tallies: Iterable[Tally], names: Iterable[str] = TABLES) -> Tally:
    """Add up the costs of several windows of `pyprof top`. Only the tables in `names` are kept."""
    tables: dict[str, dict[TopRow, RowCost]] = {name: {} for name in names}
    duration = value = samples = 0
    for each in tallies:
        duration += each.duration_ns
        value += each.value
        samples += each.samples
        for name, into in tables.items():
            _add(into, each.tables[name])
    return Tally(duration, value, samples, {name: _bounded(table) for name, table in tables.items()})


def thread_row(thread: ThreadInfo) -> TopRow:
    return TopRow(thread.name or "[unnamed]", thread.process, thread.tid)


def process_row(thread: ThreadInfo) -> TopRow:
    return TopRow(thread.process or "[unnamed]", "", thread.pid)


def frame_rows(profile: Profile, frame: Frame, table: str) -> list[TopRow]:
    """Return the rows to which a cost table adds the samples of a frame, one for each of the frame's functions.

    A frame has several functions if calls were inlined. All tables have them in the same order, outermost first, so the
    n-th row of one table and the n-th row of another stand for the same function.

    Args:
        profile: The profile with the modules of the frame.
        frame: The frame.
        table: Name of the table ("function", "native", "module", "line"), which decides what a row shows.
    """
    functions = [TopRow(function.name, module) for function, module in functions_of(profile, frame)]
    functions = functions or [TopRow(frame.title, "")]
    if table == "native":
        return functions if frame.kind not in (FrameKind.INTERPRETER, FrameKind.MARKER) else []
    if table == "function":
        return functions
    if table == "module":
        return [TopRow(row.note or "[unknown]", "") for row in functions]
    lines = [f"{line.file}:{line.line}" if line.file and line.line else "" for line in reversed(frame.lines)]
    if len(lines) != len(functions):
        return functions
    return [TopRow(line, row.name) if line else row for line, row in zip(lines, functions, strict=True)]


def _by_frames(profile: Profile, table: str) -> dict[TopRow, RowCost]:
    own = np.zeros(len(profile.parent), np.int64)
    np.add.at(own, profile.stack, profile.values[:, -1])
    ids: dict[TopRow, int] = {}
    rows = [[ids.setdefault(row, len(ids)) for row in frame_rows(profile, frame, table)] for frame in profile.frames]
    sums = TreeSums(profile, own.tolist(), rows, len(ids))
    found = zip(ids, sums.own, sums.total, strict=True)
    return {row: RowCost(self_, total) for row, self_, total in found if total}


def _by_threads(profile: Profile, spent: list[int], table: str) -> dict[TopRow, RowCost]:
    found: dict[TopRow, RowCost] = {}
    row_of = thread_row if table == "thread" else process_row
    for thread, value in zip(profile.threads, spent, strict=True):
        if value:
            _add(found, {row_of(thread): RowCost(value, value)})
    return found


def _add(into: dict[TopRow, RowCost], more: Table) -> None:
    for row, amount in more.items():
        before = into.get(row)
        into[row] = amount if before is None else RowCost(before.own + amount.own, before.total + amount.total)


def _bounded(table: dict[TopRow, RowCost]) -> dict[TopRow, RowCost]:
    if len(table) <= MAX_ROWS:
        return table
    return dict(sorted(table.items(), key=lambda each: (-each[1].total, each[0]))[: MAX_ROWS // 2])


MAX_LINES = 1000
LEAST = 0.005
"""Share of a row's value below which a branch in its tree of callers or callees is left out."""


class Step(NamedTuple):
    """One line of the tree of callers or callees in `pyprof top`.

    Attributes:
        indent: Number of forks above the line. An only child has the indent of its parent.
        value: Value of the stacks through this line.
        own: Value of the stacks whose last function is this line's.
    """

    indent: int
    row: TopRow
    value: int
    own: int


class RowTree(NamedTuple):
    """The tree of callers or callees of one row in the table of `pyprof top`.

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
    """Build the tree of callers or callees of a row in the table of `pyprof top`.

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
    """Return the functions on a stack from a row's function to the leaf (callees) or to the root (callers), without
    functions that start every program.

    Args:
        whole: Return the whole stack instead of the part from the row on.

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
    """Yield the children of a node in a tree of callers or callees, cheapest first. Children whose value is below
    `least` are left out.
    """
    for row, child in sorted(node.below.items(), key=lambda each: (each[1].value, each[0])):
        if child.value >= least:
            yield indent, row, child
