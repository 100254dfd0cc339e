"""Costs of functions, threads, processes, modules, lines and native functions in one window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from pyprof.cli.function_tables import by_caller
from pyprof.cli.live.view_choices import TABLES
from pyprof.model.function_costs import TreeSums, functions_of
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo
from pyprof.records import dataclass

MAX_ROWS = 50_000
"""Maximum number of rows of one table of costs; the cheapest ones are dropped."""


class TopRow(NamedTuple):
    """The identity of a row in a table of costs. A line that is not known is a row of its function.

    Attributes:
        note: The module of a function, the function of a line, the process of a thread.
        number: tid of a thread, pid of a process, else 0.
    """

    name: str
    note: str
    number: int = 0


class RowCost(NamedTuple):
    """Cost of a table's row in the primary value.

    Attributes:
        own: Value of samples with the row as the innermost one.
        total: Value of samples with the row anywhere on the stack.
    """

    own: int
    total: int


Table = Mapping[TopRow, RowCost]


@dataclass(frozen=True, slots=True)
class Tally:
    """The costs of functions, threads and processes in some windows.

    Attributes:
        value: Sum of the values of all samples.
        tables: Tables by the names in TABLES.
    """

    duration_ns: int
    value: int
    samples: int
    tables: Mapping[str, Table]


NOTHING = Tally(0, 0, 0, {table: {} for table in TABLES})


def tally(profile: Profile) -> Tally:
    """Compute the costs of functions, threads and processes in one window."""
    tables = {table: _by_frames(profile, table) for table in ("module", "line", "native")}
    tables["function"] = _by_frames(by_caller(profile), "function")
    spent = np.zeros(len(profile.threads), np.int64)
    np.add.at(spent, profile.thread, profile.values[:, -1])
    for table in ("thread", "process"):
        tables[table] = _by_threads(profile, spent.tolist(), table)
    return Tally(profile.duration_ns, profile.total, len(profile.stack), tables)


def together(tallies: Iterable[Tally], names: Iterable[str] = TABLES) -> Tally:
    """Add up the cost tables of several windows, only the tables with these names."""
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
    """Return a row of a cost table for each function of a frame, outermost first, so that rows of different tables
    correspond.
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
