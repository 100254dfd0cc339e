"""The interface of a screen, and the text that is drawn on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


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
