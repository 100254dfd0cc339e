"""Tests of the lines of the screen and of the table for scripts."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from pyprof.cli.arguments import TABLES
from pyprof.cli.top_screen import fitting, picture, plain
from pyprof.cli.top_screen import text as text_of
from pyprof.cli.top_snapshots import Snapshot, SnapshotBuilder
from pyprof.cli.top_view_state import View, place, rows
from pyprof.cli.top_window_costs import RowCost, TopRow
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import ThreadInfo
from tests.cli.live.support import BUSY, window
from tests.exporters.profiles import code
from tests.model.test_idle import ASYNCIO, POOL, SLEEPS, python, wait, waits


def snapshot(*stacks: object) -> Snapshot:
    return SnapshotBuilder("server (100)", "cpu").add_window(window(*(stacks or (BUSY,))))  # type: ignore[arg-type]


def test_table_for_scripts_has_title_heading_and_shares() -> None:
    assert plain(snapshot(), View(), 60, 10) == [
        "server (100): 1.00 processors, 100 samples in 1.0 s",
        "",
        "  ▼self   total function                     module",
        "  50.0%   50.0% parse                        server",
        "  40.0%   40.0% read                         libc.so.6",
        "  10.0%    100% main                         server",
    ]
    assert plain(snapshot(), View(table="thread", sort="total"), 60, 1)[2:] == [
        "   self  ▼total thread                   tid process",
        "  60.0%   60.0% main                     100 server",
    ]


def test_table_for_scripts_names_functions_that_are_missing() -> None:
    missing = "Perl functions are missing in 1 process: pyprof does not read them"
    assert plain(replace(snapshot(), warning=missing), View(), 80, 10)[1:] == [
        missing,
        *plain(snapshot(), View(), 80, 10)[2:],
    ]


REQUEST = [*POOL[:-3], python("view", "/srv/views.py"), wait(SLEEPS)]


def test_idle_threads_are_hidden_counted_and_shown_when_asked_for() -> None:
    profile, view = waits(POOL, ASYNCIO, REQUEST), View(sort="total")
    hidden, shown = (
        plain(SnapshotBuilder("server", "offcpu", idle).add_window(profile), view, 80, 30) for idle in (False, True)
    )
    assert hidden[1] == "without 2 idle threads: --idle shows them"
    assert not any("run_forever" in line for line in hidden)
    assert any("view " in line for line in hidden)
    assert shown[1] == ""
    assert any("run_forever" in line for line in shown)


def test_screen_says_that_only_idle_threads_wait() -> None:
    found = SnapshotBuilder("server (1)", "offcpu").add_window(waits(POOL, ASYNCIO))
    lines = [text_of(line) for line in picture(found, View(), None, "", 80, 10)]
    assert "offcpu, last 10 s, by function, without 2 idle threads" in lines[1]
    assert "only idle threads wait (2): --idle shows them" in "\n".join(lines)


def test_rows_are_sorted_searched_and_without_what_every_program_begins_with() -> None:
    table = snapshot().table("function", 0).tables["function"]

    def names(view: View) -> list[str]:
        return [row.name for row, _ in rows(table, view)]

    assert names(View(sort="total")) == ["main", "parse", "read"]
    assert names(View(search="^LIBC")) == []
    assert names(View(search="libc")) == ["read"]
    assert names(View(search="par[")) == []  # an invalid expression is searched literally
    assert names(View(search="P.RSE")) == ["parse"]


def test_chosen_row_is_followed_and_its_place_is_kept_when_it_is_gone() -> None:
    table = snapshot().table("function", 0).tables["function"]
    shown = rows(table, View())
    assert place(View(at=0, chosen=shown[2][0]), shown) == 2
    assert place(View(at=1, chosen=None), shown) == 1
    assert place(View(at=9, chosen=None), shown) == 2
    assert place(View(at=3), []) == 0


@pytest.mark.parametrize(
    "name", ["\x1b]0;owned\x07\x1b[2J", "abc\u202etxt.exe", "表" * 300, "e\u0301" * 90, "\ud800x", "a" * 100_000]
)
@pytest.mark.parametrize("kind", TABLES)
def test_names_that_targets_choose_stay_in_their_column(name: str, kind: str) -> None:
    hostile = code(name, file=f"/{name}", line=3)
    threads = [ThreadInfo(100, 100, name, name)]
    found = SnapshotBuilder(name, "cpu").add_window(window({(0, (hostile,)): 3}, threads=threads))
    lines = plain(found, View(table=kind), 80, 10)
    assert len(lines) == 4
    for text in lines:
        assert cell_len(text) <= 80
        assert not {*"\x1b\x07\u202e\ud800"} & {*text}


def test_text_takes_exactly_its_columns() -> None:
    assert [fitting(text, 6) for text in ("ab", "abcdefgh", "表表表表", "表表表")] == [
        "ab    ",
        "abcde…",
        "表表… ",
        "表表表",
    ]


def test_ten_thousand_functions_are_sorted_and_only_those_that_fit_are_shown() -> None:
    many = {(0, (code(f"ns::Type<int, {n}>::call(std::vector<int> const&)", rel=n),)): 1 for n in range(10_000)}
    lines = plain(snapshot(many), View(), 80, 20)
    assert len(lines) == 23
    assert all(cell_len(line) <= 80 for line in lines)
    assert "Type::call <0>" in lines[3]


def test_nothing_seen_is_a_table_without_rows() -> None:
    empty = replace(snapshot(), recent=(), whole=SnapshotBuilder("x", "cpu").add_window(window({})).whole)
    assert len(plain(empty, View(span_s=0), 80, 10)) == 3


def test_rows_through_which_everything_passes_come_after_others() -> None:
    serve, handle, parse = TopRow("serve", "web.py"), TopRow("handle", "shop.py"), TopRow("parse", "shop.py")
    table = {serve: RowCost(0, 100), handle: RowCost(0, 60), parse: RowCost(40, 40)}
    assert [row for row, _ in rows(table, View(sort="total"))] == [handle, parse, serve]
    assert [row for row, _ in rows(table, View(sort="self"))] == [parse, handle, serve]
