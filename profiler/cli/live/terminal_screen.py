"""A screen on a terminal, which is always restored.

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
from typing import Self

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from pyprof.cli.live.screen_lines import ScreenLine, StyledText

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
"""Maximum time in seconds from the first byte of a key's escape sequence to its rest."""
_RESTORE_S = 0.2
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_CURSOR = {b"A": "up", b"B": "down", b"C": "right", b"D": "left", b"H": "home", b"F": "end"}
_NUMBERED = {b"1": "home", b"7": "home", b"4": "end", b"8": "end", b"5": "pgup", b"6": "pgdn"}
_LETTERS = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "esc"}


def usable() -> bool:
    """Return True if there is a terminal that can be drawn on."""
    return sys.stdout.isatty() and not Console(file=sys.stdout).is_dumb_terminal and _keys_fd() is not None


def _keys_fd() -> int | None:
    """Open the source of keys of `pyprof top`: standard input, or else the terminal of this session."""
    if os.isatty(0):
        return os.dup(0)
    with contextlib.suppress(OSError):
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    return None


class Terminal:
    """A terminal as the Screen of `pyprof top`, on standard output; a context manager for the main thread."""

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
        """Restore the terminal while job() runs (Screen.leave_for). SIGTSTP stops this process meanwhile."""
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
    """Return the names of the keys in a piece of terminal input. A letter is its own name; unknown sequences are
    skipped.
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
