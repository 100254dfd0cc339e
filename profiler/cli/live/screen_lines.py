"""The interface of a screen, and its lines, or those of a script, from a snapshot and a view.

The functions have no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from rich.cells import cell_len, set_cell_size

from pyprof.cli.live.costs import RowCost, RowTree, Tally, TopRow
from pyprof.cli.live.snapshots import Snapshot
from pyprof.cli.live.view import View, help_lines, hints, place, rows
from pyprof.cli.terminal_output import printable
from pyprof.cli.text_format import duration, function_names, keep_apart, many, percent, shorten_middle

_SHARE = 7
_MIN_NAME = 16
_NOTE_SHARE = 4
"""Divisor of the screen's width that gives the width of the note column, which stays within these limits."""
_NOTE_LEAST, _NOTE_MOST = 12, 30
NOTE_OF = {
    "function": "module",
    "thread": "process",
    "process": "",
    "module": "",
    "line": "function",
    "native": "module",
}
NUMBER_OF = {"thread": "tid", "process": "pid"}
WHAT = {"cpu": "processors", "wall": "threads", "offcpu": "threads waiting", "lock": "threads waiting"}
"""Unit of a mode's time divided by the elapsed time, for headings."""
_ABOVE, _BELOW = 3, 1
"""Number of lines on the screen above the rows (title, choices, heading) and below them (hints)."""


class StyledText(NamedTuple):
    """A part of a line without control characters; style is one of terminal.STYLES, "" for none."""

    text: str
    style: str = ""


ScreenLine = Sequence[StyledText]


class Screen(Protocol):
    """A display with a keyboard: a terminal, or a text buffer in tests."""

    def size(self) -> tuple[int, int]:
        """Return the current size of the screen as (columns, rows)."""
        ...

    def draw(self, lines: Sequence[ScreenLine]) -> None:
        """Replace the contents of the screen.

        Raises:
            OSError: The terminal is gone.
        """
        ...

    def redraw(self) -> None:
        """Make the next draw() draw the whole screen, because the screen does not show what was drawn."""
        ...

    def keys(self, timeout_s: float) -> list[str]:
        """Return the names of the pressed keys.

        The call waits for a key until the timeout, until wake() is called, or until the size changes.

        Raises:
            OSError: The terminal is gone.
        """
        ...

    def wake(self) -> None:
        """End a wait for keys at once. Any thread may call this."""
        ...

    def leave_for(self, job: Callable[[], None]) -> None:
        """Give the terminal back to other programs while job() runs."""
        ...


def text(line: ScreenLine) -> str:
    return "".join(piece.text for piece in line)


def room(height: int) -> int:
    """Return the number of table rows that fit on a screen."""
    return max(height - _ABOVE - _BELOW, 1)


def picture(
    snapshot: Snapshot, view: View, stacks: RowTree | None, late_text: str, width: int, height: int
) -> list[ScreenLine]:
    """Return the lines of the whole screen: at most height lines of at most width columns.

    Args:
        stacks: Stacks of the opened row.
        late_text: Text to show with an old snapshot.
    """
    found = snapshot.table(view.table, view.span_s)
    lines = [_spread((StyledText(title(snapshot, found), "title"),), _state(snapshot, view, late_text), width)]
    if view.help:
        body = _help(view, width, room(height))
    elif stacks is not None:
        body = _tree(stacks, view, width, room(height))
    else:
        body = _body(snapshot, found, view, width, room(height))
    lines += [_second(snapshot, view, width), *body]
    lines = lines[: max(height - _BELOW, 1)]
    lines += [()] * (height - _BELOW - len(lines))
    return [_cut(line, width) for line in [*lines, (_last(snapshot, view, width),)][:height]]


def _cut(line: ScreenLine, width: int) -> ScreenLine:
    """Cut a line to a screen's width that was made for a wider screen."""
    left, pieces = width, []
    for piece in line:
        pieces.append(
            StyledText(piece.text if cell_len(piece.text) <= left else set_cell_size(piece.text, left), piece.style)
        )
        left = max(left - cell_len(piece.text), 0)
    return pieces


def choices(snapshot: Snapshot, view: View) -> str:
    """Describe in one line what a view of `pyprof top` shows."""
    span = f"last {view.span_s:g} s" if view.span_s else "everything"
    search = f', with "{printable(view.search)}"' if view.search else ""
    return f"{snapshot.mode}, {span}, by {view.table}{search}{_hidden(snapshot)}"


def _hidden(snapshot: Snapshot) -> str:
    """Return a text with the number of idle threads that the newest window leaves out, "" for none."""
    return f", without {many(snapshot.idle_threads, 'idle thread')}" if snapshot.idle_threads else ""


def _second(snapshot: Snapshot, view: View, width: int) -> ScreenLine:
    words = choices(snapshot, view)
    room = width - cell_len(words) - 2
    if not snapshot.warning or room < _MIN_NAME:
        return (StyledText(fitting(words, width), "note"),)
    return (StyledText(f"{words}  ", "note"), StyledText(fitting(printable(snapshot.warning), room), "warn"))


def _state(snapshot: Snapshot, view: View, late: str) -> StyledText:
    return StyledText(" [ended]" if snapshot.ended else " [paused]" if view.paused else late, "warn")


def _spread(left: ScreenLine, right: StyledText, width: int) -> ScreenLine:
    return (StyledText(fitting(text(left), max(width - len(right.text), 0)), left[0].style), right)


def _body(snapshot: Snapshot, found: Tally, view: View, width: int, page: int) -> list[ScreenLine]:
    every = rows(found.tables[view.table], view)
    at = place(view, every)
    first = at // page * page
    lines = table(every[first : first + page], found.value, view, width)
    if every:
        lines[at - first + 1] = [StyledText(piece.text, "chosen") for piece in lines[at - first + 1]]
    elif not found.samples:
        lines.append((StyledText(fitting(_nothing(snapshot), width), "note"),))
    return lines


def _tree(stacks: RowTree, view: View, width: int, page: int) -> list[ScreenLine]:
    assert view.opened is not None, "something was opened"
    what = "who calls" if view.callers else "what is in"
    share = percent(stacks.value, stacks.whole).replace(" %", "%")
    other = "callees" if view.callers else "callers"
    words = f"{share:>{_SHARE}} {what} {printable(view.opened.name)} (c: {other}, Esc: back)"
    first = min(view.first, max(len(stacks.steps) - page, 0))
    lines: list[ScreenLine] = [(StyledText(fitting(words, width), "heading"),)]
    for step in stacks.steps[first : first + page]:
        share = f"{percent(step.value, stacks.whole).replace(' %', '%'):>{_SHARE}} "
        before = " " * min(step.indent, width // 2)
        name = function_names([printable(step.row.name)], max(width - len(share) - len(before), _MIN_NAME))[0]
        lines.append((StyledText(share, "share"), StyledText(fitting(before + name, max(width - len(share), 1)))))
    return lines


def _nothing(snapshot: Snapshot) -> str:
    if not snapshot.recent:
        return "  beginning …"
    if snapshot.idle_threads:
        return f"  only idle threads wait ({snapshot.idle_threads:,}): --idle shows them"
    return "  no thread ran" + ("" if snapshot.mode == "wall" else "; m: another mode")


def _help(view: View, width: int, page: int) -> list[ScreenLine]:
    lines = [f"  {label:<9} {does}" for label, does in help_lines()]
    first = min(view.first, max(len(lines) - page, 0))
    heading = StyledText(fitting("  Keys (h: back)", width), "heading")
    return [(heading,), *((StyledText(fitting(each, width)),) for each in lines[first : first + page])]


def _last(snapshot: Snapshot, view: View, width: int) -> StyledText:
    if view.prompt:
        return StyledText(fitting(f"{view.prompt}: {printable(view.typed)[-max(width - 12, 1) :]}_", width))
    if view.message:
        return StyledText(fitting(printable(view.message), width), "warn")
    if snapshot.ended:
        return StyledText(fitting(f"{printable(snapshot.ended)}; q: quit", width), "warn")
    return StyledText(fitting(hints(), width), "note")


def plain(snapshot: Snapshot, view: View, width: int, count: int) -> list[str]:
    """Return the lines of a table for scripts: the title, what is left out, the heading, and at most count rows."""
    found = snapshot.table(view.table, view.span_s)
    shown = rows(found.tables[view.table], view)[:count]
    hidden = f"{_hidden(snapshot).removeprefix(', ')}: --idle shows them" if snapshot.idle_threads else ""
    lines = [
        (StyledText(fitting(title(snapshot, found), width)),),
        *((StyledText(fitting(text, width)),) for text in (snapshot.warning, hidden) if text),
        *(() if snapshot.warning or hidden else ((StyledText(""),),)),
        *table(shown, found.value, view, width),
    ]
    return [text(line).rstrip() for line in lines]


def title(snapshot: Snapshot, found: Tally) -> str:
    """Describe in one line what was sampled, and how much."""
    what = f"{printable(snapshot.title)}: "
    if snapshot.value_type.unit == "nanoseconds" and found.duration_ns:
        what += f"{found.value / found.duration_ns:.2f} {WHAT.get(snapshot.mode, 'threads')}, "
    return what + f"{many(found.samples, 'sample')} in {duration(found.duration_ns)}"


def table(shown: Sequence[tuple[TopRow, RowCost]], total: int, view: View, width: int) -> list[ScreenLine]:
    """Return the lines of a table of costs: the heading and a line for each row."""
    note, number = NOTE_OF[view.table], NUMBER_OF.get(view.table, "")
    notes = min(max(width // _NOTE_SHARE, _NOTE_LEAST), _NOTE_MOST) if note else 0
    numbers = 8 if number else 0
    name_room = max(width - 2 * (_SHARE + 1) - numbers - (notes + 1 if notes else 0), _MIN_NAME)
    mark = {view.sort: "▼"}
    heading = "".join(f"{mark.get(name, '') + name:>{_SHARE}} " for name in ("self", "total"))
    heading += fitting(view.table, name_room) + (f"{number:>{numbers}}" if number else "")
    lines: list[ScreenLine] = [(StyledText(fitting(f"{heading} {note}".rstrip(), width), "heading"),)]
    names = _names([row for row, _ in shown], view.table, name_room)
    for (row, amount), name in zip(shown, names, strict=True):
        shares = "".join(f"{percent(value, total).replace(' %', '%'):>{_SHARE}} " for value in amount)
        rest = f"{row.number:>{numbers}}" if number else ""
        if notes:
            rest += f" {fitting(printable(row.note), notes)}"
        lines.append((StyledText(shares, "share"), StyledText(fitting(name, name_room)), StyledText(rest, "note")))
    return lines


def _names(shown: Sequence[TopRow], kind: str, room: int) -> list[str]:
    names = [printable(row.name) for row in shown]
    if kind in ("function", "native"):
        return function_names(names, room)
    return keep_apart(names, [shorten_middle(name, room) for name in names], room)


def fitting(words: str, width: int) -> str:
    """Pad or cut a text to exactly width columns of the terminal; an ellipsis marks a cut."""
    if cell_len(words) <= width:
        return set_cell_size(words, width)
    return set_cell_size(set_cell_size(words[: 2 * width], width - 1).rstrip() + "…", width)
