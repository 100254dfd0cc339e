"""Tests of the costs of table rows in one window and in several."""

from __future__ import annotations

import pytest

from pyprof.cli import top_window_costs as module
from pyprof.cli.terminal_tables import by_caller
from pyprof.cli.top_snapshots import KEPT_NS, SnapshotBuilder
from pyprof.cli.top_window_costs import RowCost, TopRow, tally, together
from pyprof.model.analysis.function_costs import costs
from tests.cli.live.support import BUSY, MAIN, READ, START, THREADS, window
from tests.exporters.profiles import golden, marker

MS = 10_000_000


def test_tables_of_functions_modules_and_lines_count_recursion_once() -> None:
    found = tally(window(BUSY))
    assert found.value == 100 * MS
    assert found.tables["function"] == {
        TopRow("parse", "server"): RowCost(50 * MS, 50 * MS),
        TopRow("read", "libc.so.6"): RowCost(40 * MS, 40 * MS),
        TopRow("main", "server"): RowCost(10 * MS, 100 * MS),
        TopRow("_start", "server"): RowCost(0, 100 * MS),
    }
    assert found.tables["module"] == {
        TopRow("server", ""): RowCost(60 * MS, 100 * MS),
        TopRow("libc.so.6", ""): RowCost(40 * MS, 40 * MS),
    }
    assert found.tables["line"][TopRow("/src/server/parse.c:7", "parse")] == RowCost(50 * MS, 50 * MS)
    assert found.tables["line"][TopRow("read", "libc.so.6")] == RowCost(40 * MS, 40 * MS)  # no line table


def test_threads_and_processes_are_told_apart_by_their_numbers() -> None:
    found = tally(window(BUSY))
    assert found.tables["thread"] == {
        TopRow("main", "server", 100): RowCost(60 * MS, 60 * MS),
        TopRow("worker", "server", 101): RowCost(40 * MS, 40 * MS),
    }
    assert found.tables["process"] == {TopRow("server", "", 100): RowCost(100 * MS, 100 * MS)}


def test_functions_cost_what_the_library_says_and_a_cut_stack_is_somebodys() -> None:
    profile = golden()
    table, found = tally(profile).tables["function"], costs(by_caller(profile))
    same = {TopRow(cost.name, cost.module): (cost.own, cost.total) for cost in found.functions}
    assert {row: table[row] for row in same} == same
    native = tally(profile).tables["native"]
    assert native[TopRow("memcpy", "libc.so.6")] == RowCost(12 * MS, 12 * MS)
    assert not any(row.note == "app.py" for row in native)
    whole = tally(window({(0, (marker("[stack cut off]"),)): 3}))
    assert whole.tables["function"] == {TopRow("[stack cut off]", ""): RowCost(3 * MS, 3 * MS)}


def test_tables_of_windows_are_added_and_what_cost_least_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tally(window(BUSY)), tally(window({(0, (START, MAIN)): 5}, seconds=2))
    both = together((one, other))
    assert (both.value, both.samples, both.duration_ns) == (105 * MS, 105, 3_000_000_000)
    assert both.tables["function"][TopRow("main", "server")] == RowCost(15 * MS, 105 * MS)
    assert both.tables["thread"][TopRow("worker", "server", 101)] == RowCost(40 * MS, 40 * MS)
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    assert set(together((one,)).tables["function"]) == {TopRow("_start", "server")}


def test_snapshot_has_the_last_seconds_and_everything_and_never_changes() -> None:
    gathering = SnapshotBuilder("server", "cpu")
    first = gathering.add_window(window({(0, (START, READ)): 50}))
    for _ in range(KEPT_NS // 1_000_000_000 + 5):
        last = gathering.add_window(window({(0, (START, MAIN)): 10}))
    read, main = TopRow("read", "libc.so.6"), TopRow("main", "server")
    assert first.table("function", 0).tables["function"].keys() == {read, TopRow("_start", "server")}
    assert last.table("function", 0).tables["function"][read].own == 50 * MS
    assert last.table("function", 10).tables["function"][main].own == 10 * 10 * MS
    assert last.table("function", 1).duration_ns == 1_000_000_000
    assert len(last.recent) == 60
    assert gathering.end("over").ended == "over"


def test_span_is_at_least_one_window_and_windows_may_be_late() -> None:
    gathering = SnapshotBuilder("server", "cpu")
    gathering.add_window(window({(0, (START, READ)): 50}))
    found = gathering.add_window(window({(0, (START, MAIN)): 10}, seconds=1.3))
    assert found.table("function", 1).samples == 10
    assert found.table("function", 2).samples == 60


def test_threads_of_one_name_are_two() -> None:
    twins = [THREADS[0], THREADS[1], THREADS[0].__class__(100, 102, "worker", "server")]
    found = tally(window({(1, (START,)): 1, (2, (START,)): 2}, threads=twins))
    assert [row.number for row in found.tables["thread"]] == [101, 102]
