"""The screen of `pyprof top`: a terminal, which is always restored, and the lines on it, which are made from a snapshot
and a view.

Keys arrive as bytes, without echo; Ctrl-C and Ctrl-Z are keys too. Signals that end or stop this process are handled
elsewhere. The screen uses the terminal's alternate buffer, so that its former contents come back. Only changed lines
are written, because a slow connection has little bandwidth.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NamedTuple, Protocol, Self

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from pyprof.cli.number_and_name_format import duration, function_names, keep_apart, many, percent, shorten_middle
from pyprof.cli.terminal_output import printable
from pyprof.cli.top_snapshots import Snapshot
from pyprof.cli.top_view_state import View, help_lines, hints, place, rows
from pyprof.cli.top_window_costs import RowCost, RowTree, Tally, TopRow

_SHARE = 7
_MIN_NAME = 16
_NOTE_SHARE = 4
"""Divisor of the screen's width that gives the width of the column of notes, such as the module of a function. The
result is limited to _NOTE_LEAST.._NOTE_MOST.
"""
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
"""Unit of the average in the heading of `pyprof top`, by mode. The average is the measured time divided by the elapsed
time, such as 1.5 processors.
"""
_ABOVE, _BELOW = 3, 1
"""Number of lines on the screen of `pyprof top` above the table's rows (title, choices, heading) and below them
(hints).
"""


class StyledText(NamedTuple):
    """A part of a line without control characters. `style` is one of terminal.STYLES, "" for none."""

    text: str
    style: str = ""


ScreenLine = Sequence[StyledText]


class Screen(Protocol):
    """A display with a keyboard for `pyprof top`: a terminal, or a text buffer in tests."""

    def size(self) -> tuple[int, int]:
        """Return the current size of the screen as (columns, rows)."""
        ...

    def draw(self, lines: Sequence[ScreenLine]) -> None:
        """Replace the contents of the screen by these lines.

        Raises:
            OSError: The terminal is gone.
        """
        ...

    def redraw(self) -> None:
        """Let the next draw() draw all lines, because the terminal no longer shows what was drawn before."""
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
        """Give the terminal back to other programs while the function job() runs."""
        ...


def text(line: ScreenLine) -> str:
    return "".join(piece.text for piece in line)


def room(height: int) -> int:
    """Return the number of table rows that fit on the screen of `pyprof top`."""
    return max(height - _ABOVE - _BELOW, 1)


def picture(
    snapshot: Snapshot, view: View, stacks: RowTree | None, late_text: str, width: int, height: int
) -> list[ScreenLine]:
    """Return the lines of the whole screen of `pyprof top`: at most `height` lines of at most `width` columns.

    Args:
        stacks: Callers or callees of the row that the user opened, None to show the table.
        late_text: Text that says that the snapshot is old, "" if it is not.
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
    """Cut a line that was made for a wider screen to the width of the screen."""
    left, pieces = width, []
    for piece in line:
        pieces.append(
            StyledText(piece.text if cell_len(piece.text) <= left else set_cell_size(piece.text, left), piece.style)
        )
        left = max(left - cell_len(piece.text), 0)
    return pieces


def choices(snapshot: Snapshot, view: View) -> str:
    """Describe in one line what a view of `pyprof top` shows: the table, its order and its time span."""
    span = f"last {view.span_s:g} s" if view.span_s else "everything"
    search = f', with "{printable(view.search)}"' if view.search else ""
    return f"{snapshot.mode}, {span}, by {view.table}{search}{_hidden(snapshot)}"


def _hidden(snapshot: Snapshot) -> str:
    """Return a text with the number of idle threads that the tables of `pyprof top` leave out, "" for none."""
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
    """Return the lines of a table of `pyprof top` for scripts: title, omitted samples, heading, and at most `count`
    rows.
    """
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
    """Describe in one line which samples `pyprof top` shows, and how many."""
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
    """Pad or cut a text to exactly `width` columns of the terminal. A cut is marked by an ellipsis."""
    if cell_len(words) <= width:
        return set_cell_size(words, width)
    return set_cell_size(set_cell_size(words[: 2 * width], width - 1).rstrip() + "…", width)


STYLES = {
    "title": "bold",
    "heading": "bold",
    "chosen": "reverse",
    "share": "cyan",
    "note": "bright_black",
    "warn": "bold yellow",
}
_SYSTEMS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_ESCAPE_S = 0.05
"""Maximum time in seconds between the first byte of a key's escape sequence and its other bytes."""
_RESTORE_S = 0.2
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_CURSOR = {b"A": "up", b"B": "down", b"C": "right", b"D": "left", b"H": "home", b"F": "end"}
_NUMBERED = {b"1": "home", b"7": "home", b"4": "end", b"8": "end", b"5": "pgup", b"6": "pgdn"}
_LETTERS = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "esc"}


def usable() -> bool:
    """Return True if standard output is a terminal on which `pyprof top` can draw a screen."""
    return sys.stdout.isatty() and not Console(file=sys.stdout).is_dumb_terminal and _keys_fd() is not None


def _keys_fd() -> int | None:
    """Open the source of keys of `pyprof top`: standard input, otherwise the controlling terminal. Return a descriptor,
    None if there is neither.
    """
    if os.isatty(0):
        return os.dup(0)
    with contextlib.suppress(OSError):
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    return None


class Terminal:
    """A terminal on standard output as the Screen of `pyprof top`. It is a context manager for the main thread."""

    def __init__(self) -> None:
        keys = _keys_fd()
        assert keys is not None, "usable() said so"
        self._in, self._out = keys, os.dup(1)
        self._before = termios.tcgetattr(self._in)
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._drawn: list[str] = []
        self._drawn_size = (0, 0)
        self._pressed: list[str] = []
        self._handlers: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}
        console = Console(file=sys.stdout)
        system = _SYSTEMS.get(console.color_system or "", ColorSystem.STANDARD)
        plain = console.no_color or console.color_system is None
        self._styles = {name: Style.parse(text) for name, text in STYLES.items()}
        if plain:
            self._styles = {name: style.without_color for name, style in self._styles.items()}
        self._system = system
        self._encoding = sys.stdout.encoding

    def __enter__(self) -> Self:
        for number, handler in (
            (signal.SIGWINCH, self._hear),
            (signal.SIGTSTP, self._hear),
            (signal.SIGCONT, self._hear),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.restore()
        for fd in (self._in, self._out, self._woken, self._wake):
            os.close(fd)

    def _hear(self, number: int, _: object) -> None:
        if number == signal.SIGTSTP:
            self._pressed.append("ctrl-z")
        elif number == signal.SIGCONT:  # the shell may have changed the terminal meanwhile
            self._enter()
        self.wake()

    def _enter(self) -> None:
        self._drawn = []
        with contextlib.suppress(OSError, termios.error):
            mode = termios.tcgetattr(self._in)
            mode[0] &= ~(termios.IXON | termios.INLCR)
            mode[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._in, termios.TCSANOW, mode)
            self._write(_ENTER)

    def restore(self) -> None:
        """Restore the terminal's former state. Any thread may call this; a blocked terminal does not delay it."""
        with contextlib.suppress(OSError, termios.error, ValueError):
            termios.tcsetattr(self._in, termios.TCSANOW, self._before)
            if select.select([], [self._out], [], _RESTORE_S)[1]:
                self._write(_LEAVE)

    def size(self) -> tuple[int, int]:
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._out)
            if found.columns and found.lines:
                return found.columns, found.lines
        return 80, 24

    def draw(self, lines: Sequence[ScreenLine]) -> None:
        size = self.size()
        fresh = [self._rendered(line) for line in lines[: size[1]]]
        changed = [] if self._drawn and size == self._drawn_size else ["\x1b[2J"]
        before = [] if changed else self._drawn
        for at, text in enumerate(fresh):
            if at >= len(before) or before[at] != text:
                changed.append(f"\x1b[{at + 1};1H{text}\x1b[K")
        if len(before) > len(fresh):
            changed.append(f"\x1b[{len(fresh) + 1};1H\x1b[J")
        self._drawn, self._drawn_size = fresh, size
        if changed:
            self._write("".join(changed))

    def _rendered(self, line: ScreenLine) -> str:
        return "".join(self._styled(piece) for piece in line)

    def _styled(self, piece: StyledText) -> str:
        style = self._styles.get(piece.style)
        return style.render(piece.text, color_system=self._system) if style else piece.text

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._out, data) :]

    def keys(self, timeout_s: float) -> list[str]:
        if not self._pressed:
            ready, _, _ = select.select([self._in, self._woken], [], [], timeout_s)
            if self._woken in ready:
                os.read(self._woken, 4096)
            if self._in in ready:
                self._pressed += decoded(self._read())
        found, self._pressed = self._pressed, []
        return found

    def _read(self) -> bytes:
        data = os.read(self._in, 4096)
        if not data:
            raise OSError("the terminal was closed")
        if data.rfind(b"\x1b") > len(data) - 8 and select.select([self._in], [], [], _ESCAPE_S)[0]:
            data += os.read(self._in, 4096)
        return data

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake, b"!")

    def leave_for(self, job: Callable[[], None]) -> None:
        """Restore the terminal's normal state while job() runs. During this time, SIGTSTP stops this process."""
        self.restore()
        heard = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            job()
        finally:
            signal.signal(signal.SIGTSTP, heard)
            self._enter()

    def redraw(self) -> None:
        self._drawn = []


def decoded(data: bytes) -> list[str]:
    """Return the names of the keys in a piece of terminal input. The name of a letter is the letter; unknown escape
    sequences are skipped.
    """
    found: list[str] = []
    at = 0
    while at < len(data):
        match = _SEQUENCE.match(data, at)
        if match is not None:
            found += filter(None, [_named(match[0])])
            at = match.end()
            continue
        end = data.find(b"\x1b", at + 1)
        end = len(data) if end < 0 else end
        found += map(_letter, data[at:end].decode("utf-8", "ignore"))
        at = end
    return found


def _named(sequence: bytes) -> str | None:
    last = sequence[-1:]
    if last == b"~":
        return _NUMBERED.get(sequence[2:-1])
    return _CURSOR.get(last)


def _letter(letter: str) -> str:
    if letter in _LETTERS:
        return _LETTERS[letter]
    return f"ctrl-{chr(ord(letter) + 96)}" if ord(letter) < 27 else letter
