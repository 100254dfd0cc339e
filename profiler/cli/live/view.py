"""What is shown, and how: one value. Keys make another one of it; snapshots that come do not change it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pyprof.cli.live.choices import DEFAULT_SPAN_S
from pyprof.cli.live.tally import RowCost, Table, TopRow
from pyprof.model.functions import PASSED_ON, START_UP
from pyprof.records import dataclass

Shown = Sequence[tuple[TopRow, RowCost]]


@dataclass(frozen=True, slots=True)
class View:
    """table: of TABLES. sort: of SORTS. span_s: of SPANS_S. search: rows in whose name or note it is found; ""
    for all. at: the chosen row, counted from the first. chosen: which one that is; it stays the chosen one where others
    overtake it.

    prompt: what is being typed, "" where nothing is; typed: so far. help: the help is shown. opened: the row whose
    stacks are shown, None for the table; callers: those that call it, else what it calls. first: the first line of
    either. message: of the last line, until the next key. wants: what the loop is to do, which clears it, "" for
    nothing.
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
    """Those that a view shows, dearest first; nothing that every program and thread begins with. Rows through which
    everything passes come after others.
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
    """Where the chosen row is now; where it was if it is gone. 0 where there is no row."""
    for at, (row, _) in enumerate(shown):
        if row == view.chosen:
            return at
    return max(min(view.at, len(shown) - 1), 0)


def _starts(row: TopRow) -> bool:
    return row.name in START_UP or row.note in START_UP


def _fits(search: str) -> Callable[[TopRow], bool]:
    try:
        pattern = re.compile(search, re.IGNORECASE)
    except re.error:  # while it is typed, or meant as it stands
        pattern = re.compile(re.escape(search), re.IGNORECASE)
    return lambda row: bool(pattern.search(f"{row.name}\n{row.note}\n{row.number or ''}"))
