"""Ends of windows, and steps of the wall clock.

Windows end at multiples of their length since the epoch, shifted by a random part that differs between agents, so that
hosts do not all work at the same moment. The monotonic clock measures their length.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

_SHIFT = 0.05
"""Maximum shift of a window's end relative to the window's length."""
_LEAST = 0.25
"""Minimum length of a window relative to the configured one; a shorter window continues to the next end."""


class WindowClock:
    """The end times of windows of `every` seconds."""

    def __init__(self, every: float, shift: float | None = None) -> None:
        self.every = every
        self._shift = random.uniform(0, _SHIFT * every) if shift is None else shift

    def left(self, now: float) -> float:
        """Return the seconds from a time (since the epoch) to the next end of a window."""
        found = self.every - (now - self._shift) % self.every
        return found if found >= _LEAST * self.every else found + self.every


_TOLERANCE_NS = 100_000_000
"""Differences in nanoseconds between clocks that do not count as a step. They come from scheduling between two
readings, or cannot be seen in a window.
"""
_READINGS = 3


class ClockSteps:
    """Steps of the wall clock since this object was created. All methods may be called from any thread.

    The recorder follows a step when it ends a window: the window keeps its start time, and the next one has the new
    time. This class finds the steps for the log.
    """

    def __init__(
        self,
        say: Callable[..., None],
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Read the wall clock and the monotonic clock for the first time.

        Args:
            say: Function that writes a line of the log, one for each step.
            wall_ns: Returns the wall clock.
            monotonic_ns: Returns the monotonic clock.
        """
        self._say, self._wall_ns, self._monotonic_ns = say, wall_ns, monotonic_ns
        self._lock = threading.Lock()
        self._first_ns = self._known_ns = self._ahead_ns()

    def total_ns(self) -> int:
        """Return how far the wall clock was set forward since the beginning; negative if it was set back."""
        with self._lock:
            step_ns = self._ahead_ns() - self._known_ns
            if abs(step_ns) > _TOLERANCE_NS:
                self._known_ns += step_ns
                self._say("warning", "clock was set", seconds=round(step_ns / 1e9, 1))
            return self._known_ns - self._first_ns

    def _ahead_ns(self) -> int:
        """Return by how much the wall clock is ahead of the monotonic clock, from the reading with the shortest
        interruption.
        """
        readings = []
        for _ in range(_READINGS):
            before, wall, after = self._monotonic_ns(), self._wall_ns(), self._monotonic_ns()
            readings.append((after - before, wall - (before + after) // 2))
        return min(readings)[1]
