"""When windows end: at multiples of their length since the epoch, shifted by a part that is this agent's own, so that
not all hosts work at the same moment.
"""

from __future__ import annotations

import random

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
