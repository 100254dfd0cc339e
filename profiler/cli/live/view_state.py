"""The current view of `pyprof top` as an immutable value. Keys create another value; new samples do not change it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pyprof.cli.live.cost_totals import RowCost, Table, TopRow
from pyprof.cli.live.view_choices import DEFAULT_SPAN_S
from pyprof.model.function_costs import PASSED_ON, START_UP
from pyprof.records import dataclass

Shown = Sequence[tuple[TopRow, RowCost]]


@dataclass(frozen=True, slots=True)
class View:
    """The state of the display of `pyprof top`: table, order, filter, selected row.

    Attributes:
        table: One of TABLES.
        sort: One of SORTS.
        span_s: One of SPANS_S.
        search: Show only rows with this text in their name or note, "" for all.
        at: Index of the selected row.
        chosen: The selected row; it stays selected when its index changes.
        prompt: Name of the open input line, "" if none is open.
        typed: Text in the input line.
        help: True if the help is shown.
        first: First line of the help or of the stacks that is shown.
        opened: The row whose stacks are shown, None for the table.
        callers: Show the row's callers instead of its callees.
        message: Text of the last line until the next key.
        wants: Action for the loop, which then clears it; "" for none.
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
    """Return the rows that a view of `pyprof top` shows, most expensive first, without the functions that start every
    program or thread.

    Rows through which nearly all samples pass come after others.
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
    """Return the index of the selected row of the table, or its former index if it is gone; 0 if there are no rows."""
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
