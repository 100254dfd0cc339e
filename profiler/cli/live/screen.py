"""What a screen can do, and what is drawn on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class StyledText(NamedTuple):
    """Some text of a line. style: one of terminal.STYLES, "" for none. Never has control characters."""

    text: str
    style: str = ""


ScreenLine = Sequence[StyledText]


class Screen(Protocol):
    """Where lines are drawn and keys are pressed: a terminal, or in tests something that holds text."""

    def size(self) -> tuple[int, int]:
        """(columns, rows), as they are now."""
        ...

    def draw(self, lines: Sequence[ScreenLine]) -> None:
        """In place of what was there. Raises OSError where the terminal is gone."""
        ...

    def redraw(self) -> None:
        """What is there is not what was drawn: draw() draws all of it."""
        ...

    def keys(self, timeout_s: float) -> list[str]:
        """Names of the keys that were pressed; waits for one at most so long, or until wake() is called or the size
        changes. Raises OSError where the terminal is gone.
        """
        ...

    def wake(self) -> None:
        """End a wait for keys. From any thread."""
        ...

    def leave_for(self, job: Callable[[], None]) -> None:
        """The terminal is as it was before while job() runs."""
        ...


def text(line: ScreenLine) -> str:
    return "".join(piece.text for piece in line)
