"""Tests of `pyprof top` on a fake screen: scripted keys and the resulting screens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyprof.cli.arguments import TABLES
from pyprof.cli.top_session import Acts, Loop
from pyprof.cli.top_snapshots import Snapshot, SnapshotBuilder
from pyprof.cli.top_view_state import KEYS, View, hints
from pyprof.errors import NoSuchProcess, UsageError
from pyprof.lazy_dataclasses import replace
from tests.cli.live.fake_screen import FakeScreen
from tests.cli.live.support import BUSY, MAIN, PARSE, READ, START, Stacks, window
from tests.exporters.profiles import code

PLAIN = View()
FIRST = SnapshotBuilder("server (100)", "cpu").add_window(window(BUSY))


def refuse(mode: str) -> None:
    raise NoSuchProcess(f"no process for {mode}")


def save(snapshot: Snapshot, path: str) -> str:
    if path == "/":
        raise UsageError("/ is a directory")
    return f"saved {snapshot.whole.samples} samples in {path or 'a file'}"


def shown(
    *script: str | Callable[[], None],
    view: View = PLAIN,
    snapshot: Snapshot = FIRST,
    columns: int = 80,
    lines: int = 9,
) -> list[list[str]]:
    """Return the first screen and that after each step of the script."""
    screen = FakeScreen(script, columns, lines)
    Loop(screen, view, snapshot, Acts(refuse, lambda: None, save)).run()
    return screen.shown


def test_first_picture() -> None:
    assert shown(columns=64) == [
        [
            "server (100): 1.00 processors, 100 samples in 1.0 s",
            "cpu, last 10 s, by function",
            "  ▼self   total function                        module",
            "  50.0%   50.0% parse                           server",
            "  40.0%   40.0% read                            libc.so.6",
            "  10.0%    100% main                            server",
            "",
            "",
            "Tab table  s sort  m mode  / search  Space pause  Enter stacks…",
        ]
    ]


def test_hints_fit_on_the_smallest_usual_terminal() -> None:
    assert len(hints()) <= 80


def test_each_table_has_a_key_and_tab_leads_through_all() -> None:
    by = [picture[1].rsplit(" ", 1)[1] for picture in shown("2", "5", "1", *["tab"] * len(TABLES))]
    assert by == ["function", "thread", "line", *TABLES, TABLES[0]]


def test_sort_range_and_search_change_rows_and_say_so() -> None:
    first = [picture[3].split()[2] for picture in shown("s", "/", "L", "i", "b", "enter", "esc")]
    assert first == ["parse", "main", "main", "read", "read", "read", "read", "main"]
    assert [picture[1].split(",")[1] for picture in shown("r", "r", "r", "r")] == [
        *(" last 10 s", " last 60 s", " everything", " last 1 s", " last 10 s")
    ]
    typing = shown("/", "l", "x", "backspace", "enter")
    assert typing[3][-1] == "search: lx_"
    assert typing[4][1].endswith('with "l"')
    assert typing[5][1].endswith('with "l"')
    assert shown("/", "l", "esc")[3][1].endswith("by function")


def test_held_picture_stays_while_others_come_and_keys_work() -> None:
    gathering = SnapshotBuilder("server (100)", "cpu")
    loop: list[Loop] = []

    def post() -> None:
        loop[0].post(gathering.add_window(window({(0, (START, READ)): 7})))

    screen = FakeScreen([" ", post, "s", " ", post])
    loop.append(Loop(screen, View(), FIRST, Acts(refuse, lambda: None, save)))
    loop[0].run()
    titles = [picture[0] for picture in screen.shown]
    assert "100 samples" in titles[0]
    assert [("100 samples" in title, title.endswith("[paused]")) for title in titles[1:4]] == [(True, True)] * 3
    assert "▼total" in screen.shown[3][2]
    assert "7 samples" in titles[4]
    assert "14 samples" in titles[5]
    assert screen.woken == 2


def test_chosen_row_stays_chosen_where_others_overtake_it() -> None:
    gathering = SnapshotBuilder("server (100)", "cpu")
    screen = FakeScreen(["down", lambda: loop.post(snapshot), "down"])
    gathering.add_window(window({(0, (MAIN, PARSE)): 9, (0, (MAIN, READ)): 8}))
    snapshot = gathering.add_window(window({(0, (MAIN, READ)): 8}))
    loop = Loop(screen, View(), FIRST, Acts(refuse, lambda: None, save))
    loop.run()
    assert loop.view.chosen is not None
    assert (loop.view.at, loop.view.chosen.name) == (1, "parse")  # the selected row "read" came first before


def test_many_rows_are_pages_and_the_keys_stay_within() -> None:
    many: Stacks = {(0, (code(f"f{n:05}", rel=n),)): 1 for n in range(10_000)}
    pictures = shown(
        "pgdn",
        "end",
        "pgdn",
        "up",
        "home",
        "up",
        snapshot=SnapshotBuilder("x", "cpu").add_window(window(many)),
        lines=14,
    )
    assert [picture[3].split()[2] for picture in pictures] == [
        *("f00000", "f00010", "f09990", "f09990", "f09990", "f00000", "f00000")
    ]


def test_help_has_every_key_and_scrolls() -> None:
    page = shown("h", lines=60)[1]
    assert all(any(line.startswith(f"  {key.label} ") and key.does in line for line in page) for key in KEYS)
    small = shown("?", "pgdn", "pgup", "esc", lines=8)
    assert small[1][2] == "  Keys (h: back)"
    assert small[1] != small[2]
    assert small[3] == small[1]
    assert small[4][2].startswith("  ▼self")


def test_stacks_of_a_row_are_a_tree_of_callees_or_callers() -> None:
    called, callers, back = shown("s", "enter", "c", "esc", columns=60)[2:5]
    assert called[2:7] == [
        "   100% what is in main (c: callers, Esc: back)",
        "   100% main",
        "  50.0%  parse",
        "  20.0%   parse",
        "  40.0%  read",
    ]
    assert callers[2:5] == ["   100% who calls main (c: callees, Esc: back)", "   100% main", ""]
    assert back[2].startswith("   self")
    assert shown("enter", columns=60)[1][3:6] == ["  50.0% parse", "  30.0%  main", "  20.0%  parse"]


def test_stacks_scroll_within_and_the_chosen_row_stays() -> None:
    top, down, end, back = shown("s", "enter", "down", "end", "esc", lines=7)[2:]
    assert [picture[3] for picture in (top, down, end)] == ["   100% main", "  50.0%  parse", "  50.0%  parse"]
    assert back[3].endswith("server")
    assert back[3].split()[2] == "main"


def test_stacks_of_a_thread_and_a_module_are_trees_too() -> None:
    thread = shown("2", "down", "enter")[3]
    assert thread[2:5] == ["  40.0% what is in worker (c: callers, Esc: back)", "  40.0% main", "  40.0% read"]
    module = shown("4", "down", "enter")[3]
    assert module[3:6] == ["  40.0% read", "  40.0% main", ""]


def test_save_asks_for_a_name_and_says_where_it_is_or_why_not() -> None:
    assert shown("w", "x", "enter")[-1][-1] == "saved 100 samples in x"
    assert shown("w", "enter")[-1][-1] == "saved 100 samples in a file"
    assert shown("w", "/", "enter")[-1][-1] == "/ is a directory"
    assert shown("w", "x", "esc")[-1][-1].startswith("Tab table")


def test_another_mode_that_cannot_be_is_said_and_forgotten_with_the_next_key() -> None:
    pictures = shown("m", "s")
    assert pictures[1][-1].startswith("beginning anew: wall")
    assert pictures[2][-1] == "no process for wall"
    assert pictures[3][-1].startswith("Tab table")


def test_target_that_ended_leaves_its_picture() -> None:
    picture = shown("s", snapshot=replace(FIRST, ended="the target has ended"))[1]
    assert picture[0].endswith("[ended]")
    assert picture[3].split()[2] == "main"
    assert picture[-1] == "the target has ended; q: quit"


def test_picture_that_is_late_says_how_old_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("pyprof.cli.top_session.monotonic", lambda: now[0])
    assert shown(lambda: now.append(now.pop() + 1), " ")[1][0].endswith(" in 1.0 s")
    titles = [picture[0] for picture in shown(lambda: now.append(now.pop() + 4), " ", " ")]
    assert [title.rsplit("  ", 1)[-1].strip() for title in titles[1:]] == ["[4 s old]", "[paused]", "[4 s old]"]


def test_warning_stands_beside_the_choices_where_there_is_room() -> None:
    warned = replace(FIRST, warning="Children used 3 s")
    assert shown(snapshot=warned)[0][1] == "cpu, last 10 s, by function  Children used 3 s"
    assert shown(snapshot=warned, columns=30)[0][1] == "cpu, last 10 s, by function"


def test_nothing_yet_and_no_running_thread_are_said() -> None:
    assert "beginning" in shown(snapshot=Snapshot("x", "cpu"))[0][3]
    assert "no thread ran" in shown(snapshot=SnapshotBuilder("x", "cpu").add_window(window({})))[0][3]


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (10, 4), (20, 5), (300, 80)])
def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    for picture in shown("h", "h", "/", "x", "enter", "down", columns=size[0], lines=size[1]):
        assert len(picture) <= size[1]


def test_keys_of_the_terminal_are_for_the_loop() -> None:
    stopped: list[int] = []
    screen = FakeScreen(["ctrl-z", "ctrl-l", "f13", "\x00"])
    Loop(screen, View(), FIRST, Acts(refuse, lambda: stopped.append(1), save)).run()
    assert (screen.left, stopped, screen.redrawn) == (1, [1], 1)
    assert screen.shown[0] == screen.shown[-1]
