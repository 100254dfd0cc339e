"""The current view of `pyprof top` as an immutable value, and the keys that change it.

A key creates another view; new samples do not change the view.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pyprof.cli.arguments import DEFAULT_SPAN_S, SORTS, SPANS_S, TABLES
from pyprof.cli.top_window_costs import RowCost, Table, TopRow
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.function_costs import PASSED_ON, START_UP

Shown = Sequence[tuple[TopRow, RowCost]]


@dataclass(frozen=True, slots=True)
class View:
    """The state of the display of `pyprof top`: table, order, filter, selected row.

    Attributes:
        table: Name of the shown table, one of TABLES.
        sort: Order of the rows, one of SORTS.
        span_s: Length of the covered time span in seconds, one of SPANS_S.
        search: Show only rows with this text in their name or note, "" for all.
        at: Index of the selected row.
        chosen: The selected row; it stays selected when its index changes.
        prompt: Name of the open input line, "" if none is open.
        typed: Text in the input line.
        help: True if the help is shown.
        first: Index of the first visible line of the help or of the stacks.
        opened: The row whose stacks are shown, None for the table.
        callers: Show the row's callers instead of its callees.
        message: Text of the last line until the next key.
        wants: Action that the view requests from the event loop, "" for none. The loop clears it.
    """

    table: str = "function"
    sort: str = "self"
    span_s: float = DEFAULT_SPAN_S
    search: str = ""
    paused: bool = False
    at: int = 0
    chosen: TopRow | None = None
    prompt: str = ""
    typed: str = ""
    help: bool = False
    first: int = 0
    opened: TopRow | None = None
    callers: bool = False
    message: str = ""
    wants: str = ""


def rows(table: Table, view: View) -> list[tuple[TopRow, RowCost]]:
    """Return the rows that a view of `pyprof top` shows, most expensive first. Functions that start every program or
    thread are left out.

    Rows through which nearly all samples pass come after the other rows.
    """
    fits = _fits(view.search)
    found = [(row, amount) for row, amount in table.items() if fits(row) and (amount.own or not _starts(row))]
    by_total = view.sort == "total"
    whole = max((amount.total for _, amount in found), default=0)

    def key(each: tuple[TopRow, RowCost]) -> tuple[bool, int, bool, int, TopRow]:
        row, amount = each
        is_trunk = amount.total >= PASSED_ON * whole and amount.own < (1 - PASSED_ON) * whole
        return by_total and is_trunk, -amount[by_total], is_trunk, -amount[not by_total], row

    found.sort(key=key)
    return found


def place(view: View, shown: Shown) -> int:
    """Return the index of the selected row among the shown rows of `pyprof top`. If the row is no longer shown, return
    the selection's former index, limited to the shown rows.
    """
    for at, (row, _) in enumerate(shown):
        if row == view.chosen:
            return at
    return max(min(view.at, len(shown) - 1), 0)


def _starts(row: TopRow) -> bool:
    return row.name in START_UP or row.note in START_UP


def _fits(search: str) -> Callable[[TopRow], bool]:
    try:
        pattern = re.compile(search, re.IGNORECASE)
    except re.error:  # incomplete, or not meant as a pattern
        pattern = re.compile(re.escape(search), re.IGNORECASE)
    return lambda row: bool(pattern.search(f"{row.name}\n{row.note}\n{row.number or ''}"))


QUIT, MODE, SUSPEND, REDRAW = "quit", "mode", "suspend", "redraw"
"""Actions that a view of `pyprof top` can request from the event loop."""
SEARCH, SAVE = "search", "save as"
"""Prompts of the input lines of `pyprof top`. SAVE is also the action that the view requests after the input of a file
name.
"""
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Around:
    """The values that a key handler of `pyprof top` needs: all rows of the table, and the number of rows that fit on
    the screen.
    """

    shown: Shown
    page: int


T = TypeVar("T")
Press = Callable[[View, Around], View]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of `pyprof top`, its effect and its help.

    Attributes:
        names: Names of the key, as Screen.keys() returns them.
        label: Name of the key for people.
        does: Effect of the key, for the help.
        press: Function that returns the view after the key.
        hint: Word for the last line of the screen, "" to leave the key out there.
    """

    names: tuple[str, ...]
    label: str
    does: str
    press: Press
    hint: str = ""


def _moved(by: Callable[[Around], int]) -> Press:
    """Return a key handler that moves the selection by a number of rows. If the help or stacks are shown, it scrolls
    their text by as many lines.
    """

    def press(view: View, around: Around) -> View:
        if view.help or view.opened:
            return replace(view, first=max(view.first + by(around), 0))
        at = max(min(place(view, around.shown) + by(around), len(around.shown) - 1), 0)
        return replace(view, at=at, chosen=around.shown[at][0] if around.shown else None)

    return press


def _by(table: str) -> Press:
    return lambda view, _: replace(view, table=table, at=0, chosen=None, opened=None)


def _next(now: T, among: Sequence[T]) -> T:
    return among[(among.index(now) + 1) % len(among)] if now in among else among[0]


def _sorted(view: View, _: Around) -> View:
    return replace(view, sort=_next(view.sort, SORTS))


def _ranged(view: View, _: Around) -> View:
    return replace(view, span_s=_next(view.span_s, SPANS_S))


def _paused(view: View, _: Around) -> View:
    return replace(view, paused=not view.paused)


def _helped(view: View, _: Around) -> View:
    return replace(view, help=not view.help, first=0)


def _turned(view: View, _: Around) -> View:
    return replace(view, callers=not view.callers, first=0)


def _wanting(what: str) -> Press:
    return lambda view, _: replace(view, wants=what)


def _asking(prompt: str) -> Press:
    return lambda view, _: replace(view, prompt=prompt, typed="")


def _back(view: View, _: Around) -> View:
    """Go back one step in `pyprof top`: close the help, close the opened row's stacks, or end the search."""
    if view.help:
        return replace(view, help=False, first=0)
    return replace(view, opened=None) if view.opened else replace(view, search="")


def _open(view: View, around: Around) -> View:
    """Show the stacks of the selected row: its callers if most of its cost is its own cost, otherwise its callees."""
    if not around.shown or view.opened:
        return view
    at = place(view, around.shown)
    row, amount = around.shown[at]
    callers = not row.number and 2 * amount.own > amount.total
    return replace(view, at=at, chosen=row, opened=row, callers=callers, first=0)


_FAR = 1 << 30
_ROWS = {"native": "native function, also below an interpreter's"}

KEYS = (
    *(Key((str(n),), str(n), f"a row for each {_ROWS.get(row, row)}", _by(row)) for n, row in enumerate(TABLES, 1)),
    Key(("tab",), "Tab", "the next of these tables", lambda v, a: _by(_next(v.table, TABLES))(v, a), "table"),
    Key(("s",), "s", "sort by self or total", _sorted, "sort"),
    Key(("r",), "r", "how far back: 1 s, 10 s, 60 s, everything", _ranged),
    Key(("m",), "m", "begin anew: threads that run (cpu), all (wall), that wait (offcpu)", _wanting(MODE), "mode"),
    Key(("/",), "/", "only rows whose name matches: a text or a regular expression", _asking(SEARCH), "search"),
    Key((" ", "p"), "Space", "hold the picture, while the sampling goes on", _paused, "pause"),
    Key(("enter",), "Enter", "the stacks of the chosen row, as a tree", _open, "stacks"),
    Key(("c",), "c", "of these stacks: who calls it, or what it calls", _turned),
    Key(("w",), "w", "save what was seen: .html, .pyprof, .pb.gz, .speedscope.json, …", _asking(SAVE)),
    Key(("up", "k"), "↑ k", "the row above", _moved(lambda _: -1)),
    Key(("down", "j"), "↓ j", "the row below", _moved(lambda _: 1)),
    Key(("pgup",), "PgUp", "a page up", _moved(lambda around: -around.page)),
    Key(("pgdn",), "PgDn", "a page down", _moved(lambda around: around.page)),
    Key(("home", "g"), "Home g", "the first row", _moved(lambda _: -_FAR)),
    Key(("end", "G"), "End G", "the last row", _moved(lambda _: _FAR)),
    Key(("esc", "backspace"), "Esc", "back: close what is open, end the search", _back),
    Key(("h", "?"), "h ?", "this help", _helped, "help"),
    Key(("ctrl-l",), "Ctrl-L", "draw the screen anew", _wanting(REDRAW)),
    Key(("ctrl-z",), "Ctrl-Z", "stop, as a job of the shell", _wanting(SUSPEND)),
    Key(("q", "ctrl-c"), "q Ctrl-C", "leave", _wanting(QUIT), "quit"),
)  # fmt: skip
_KEY = {name: key for key in KEYS for name in key.names}


def pressed(view: View, name: str, around: Around) -> View:
    """Return the view of `pyprof top` after a key. An unknown key only clears the message."""
    view = replace(view, message="")
    if view.prompt:
        return _typed(view, name)
    key = _KEY.get(name)
    return key.press(view, around) if key is not None else view


def _typed(view: View, name: str) -> View:
    """Return the view of `pyprof top` after a key while an input line is open. A search takes effect while it is
    typed.
    """
    if name in ("esc", "ctrl-c"):
        return replace(view, prompt="", search="" if view.prompt == SEARCH else view.search)
    if name == "enter":
        return replace(view, prompt="", wants="" if view.prompt == SEARCH else view.prompt)
    typed = view.typed
    if name == "backspace":
        typed = typed[:-1]
    elif len(name) == 1 and name.isprintable():
        typed = (typed + name)[:_LONGEST]
    return replace(view, typed=typed, search=typed if view.prompt == SEARCH else view.search)


def help_lines() -> Iterator[tuple[str, str]]:
    """Yield (key, effect) for the help of `pyprof top`, in the order of the table."""
    return ((key.label, key.does) for key in KEYS)


def hints() -> str:
    """Return a text with the most important keys of `pyprof top`, for the last line of the screen."""
    return "  ".join(f"{key.label.split()[0]} {key.hint}" for key in KEYS if key.hint)
