"""A check whether a thread keeps its processor until others want it, or gives it up all the time.

Stopping a thread on another processor takes some 0.05 ms, during which it continues to run. A thread that rarely gives
up its processor is still at the same place then. A thread that often gives it up is found where it waits.
"""

from __future__ import annotations

from pyprof.records import dataclass

MIN_STEADY_NS = 4_000_000
"""Average running time between two waits from which a thread is steady."""
_WINDOW_NS = 50_000_000
_WINDOW_TIMES = _WINDOW_NS // MIN_STEADY_NS


@dataclass(eq=False, slots=True)
class Steadiness:
    """A thread's behaviour in the last 0.05 s of its running time.

    Before it has run that long, all of its running time counts. `steady` is False while nothing is known.
    """

    steady: bool = False
    _young: bool = True
    _ran_ns: int = 0
    _waits: int = 0

    def learn(self, ran_ns: int, waits: int) -> None:
        """Update the state from the thread's total running time and its number of voluntary switches."""
        ran, times = ran_ns - self._ran_ns, waits - self._waits
        whole = ran >= _WINDOW_NS or times > _WINDOW_TIMES
        if whole or self._young:
            self.steady = ran >= MIN_STEADY_NS * (times + 1)
        if whole:
            self._young, self._ran_ns, self._waits = False, ran_ns, waits
