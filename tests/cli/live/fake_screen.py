"""A test double for the terminal that stores text and sends scripted keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.cells import cell_len

from pyprof.cli.top_screen import ScreenLine, text


class FakeScreen:
    """A screen that sends a script of keys and stores what is drawn.

    Attributes:
        shown: Each screen that was drawn, as lines of text.
        left: Number of times that the terminal was released for a job.
        redrawn: Number of complete redraws.
        woken: Number of wakeups.
    """

    def __init__(self, script: Iterable[str | Callable[[], None]], columns: int = 80, lines: int = 24) -> None:
        self._script = [*script, "q"]
        self.columns, self.lines = columns, lines
        self.shown: list[list[str]] = []
        self.left = self.redrawn = self.woken = 0

    def size(self) -> tuple[int, int]:
        return self.columns, self.lines

    def draw(self, lines: Sequence[ScreenLine]) -> None:
        drawn = [text(line) for line in lines]
        assert len(drawn) <= self.lines
        assert all(cell_len(line) <= self.columns for line in drawn)
        self.shown.append([line.rstrip() for line in drawn])

    def redraw(self) -> None:
        self.redrawn += 1

    def keys(self, timeout_s: float) -> list[str]:
        step = self._script.pop(0)
        if isinstance(step, str):
            return [step]
        step()
        return []

    def wake(self) -> None:
        self.woken += 1

    def leave_for(self, job: Callable[[], None]) -> None:
        self.left += 1
        job()
