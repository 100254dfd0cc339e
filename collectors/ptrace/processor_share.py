"""How much of the time in which it could run a thread had a processor, and so how often it is to be sampled."""

from __future__ import annotations

import random

from pyprof.collectors.ptrace.young_threads import YoungThreads
from pyprof.records import dataclass, field

_WINDOW_NS = 100_000_000
"""So long a thread runs and waits until its share is known: the kernel counts at ticks and switches."""
_WHOLE = 0.9
"""What is missing then is what we have disturbed, or a few switches."""


@dataclass(eq=False, slots=True)
class ProcessorShare:
    """young: of the threads of the same processes that are too young to be known."""

    young: YoungThreads = field(default_factory=YoungThreads)
    _ran: int = -1
    _waited: int = 0
    _share: float = -1.0
    _credit: float = field(default_factory=random.random)

    def due(self, schedstat: bytes) -> bool:
        """Is a thread that could run to be sampled now? As often as it had a processor, of the time in which it ran or
        waited for one: else ten threads on two processors would have ten seconds of processor time in each second.
        One that never had one is where it was born, however long it waits there.
        """
        ran, waited, turns = map(int, schedstat.split()[:3])
        if not turns:
            return False
        if self._ran < 0:
            self._ran, self._waited = ran, waited
        more, idle = ran - self._ran, waited - self._waited
        if more + idle >= _WINDOW_NS:
            share = more / (more + idle)
            self._share = share if share < _WHOLE else 1.0
            self._ran, self._waited = ran, waited
        is_young = self._share < 0
        self._credit += self.young.share if is_young else self._share
        taken = self._credit >= 1
        self._credit -= taken
        self.young.found(is_young, taken)
        return taken
