"""Does a thread keep its processor until others want it, or does it leave it all the time?

To stop a thread on another processor takes some 0.05 ms, in which it runs on. One that leaves its processor seldom is
still at its place then. One that leaves it often is found where it waits.
"""

from __future__ import annotations

from pyprof.records import dataclass

STEADY_NS = 4_000_000
"""So long a steady thread runs before it waits for something, on average."""
_WINDOW_NS = 50_000_000
_WINDOW_TIMES = _WINDOW_NS // STEADY_NS


@dataclass(eq=False, slots=True)
class Steadiness:
    """steady: by the last 0.05 s for which it ran, by all of them before, and False as long as nothing is known."""

    steady: bool = False
    _young: bool = True
    _ran_ns: int = 0
    _waits: int = 0

    def learn(self, ran_ns: int, waits: int) -> None:
        """How long it has run since it began, and how often it left its processor by itself."""
        ran, times = ran_ns - self._ran_ns, waits - self._waits
        whole = ran >= _WINDOW_NS or times > _WINDOW_TIMES
        if whole or self._young:
            self.steady = ran >= STEADY_NS * (times + 1)
        if whole:
            self._young, self._ran_ns, self._waits = False, ran_ns, waits
