"""When windows end, and what a step of the wall clock does to them.

Windows end at multiples of their length since the epoch, shifted by a part that is this agent's own, so that not all
hosts work at the same moment. Their length is measured by the monotonic clock.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

_SHIFT = 0.05
"""Most of a window's length."""
_LEAST = 0.25
"""A window is at least so much of its length long: what would be shorter goes on until the next moment."""


class WindowClock:
    """every: seconds."""

    def __init__(self, every: float, shift: float | None = None) -> None:
        self.every = every
        self._shift = random.uniform(0, _SHIFT * every) if shift is None else shift

    def left(self, now: float) -> float:
        """Seconds from now (since the epoch) to the next end."""
        found = self.every - (now - self._shift) % self.every
        return found if found >= _LEAST * self.every else found + self.every


_TOLERANCE_NS = 100_000_000
"""Smaller differences come from the scheduling between two readings, or are smaller than anybody sees in a window."""
_READINGS = 3


class ClockSteps:
    """How far the wall clock was set since this was made. All methods may be called from any thread.

    The recorder follows a step when it cuts a window: the window keeps the time of its beginning, the next one has the
    new time. This class finds the steps for the log.
    """

    def __init__(
        self,
        say: Callable[..., None],
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Args:
        say: takes lines of the log; each step is one.
        """
        self._say, self._wall_ns, self._monotonic_ns = say, wall_ns, monotonic_ns
        self._lock = threading.Lock()
        self._first_ns = self._known_ns = self._ahead_ns()

    def total_ns(self) -> int:
        """Return by how much the wall clock was set forward since the beginning; negative: it was set back."""
        with self._lock:
            step_ns = self._ahead_ns() - self._known_ns
            if abs(step_ns) > _TOLERANCE_NS:
                self._known_ns += step_ns
                self._say("warning", "clock was set", seconds=round(step_ns / 1e9, 1))
            return self._known_ns - self._first_ns

    def _ahead_ns(self) -> int:
        """Return the wall clock minus the monotonic one, by the reading that was interrupted least."""
        readings = []
        for _ in range(_READINGS):
            before, wall, after = self._monotonic_ns(), self._wall_ns(), self._monotonic_ns()
            readings.append((after - before, wall - (before + after) // 2))
        return min(readings)[1]
