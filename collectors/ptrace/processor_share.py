"""How much of the time in which it could run a thread had a processor, and so how often it is to be sampled."""

from __future__ import annotations

import random

from pyprof.collectors.ptrace.young_threads import YoungThreads
from pyprof.records import dataclass, field

WINDOW_NS = 100_000_000
"""So long a thread runs and waits until its share is known: the kernel counts at ticks and switches."""
WHOLE = 0.9
"""What is missing then is what we have disturbed, or a few switches."""


@dataclass(eq=False, slots=True)
class ProcessorShare:
    """young: of the threads of the same processes that are too young to be known. ran, waited: when the share was found
    last, ns, -1: never; share: -1 as long as it is not known; credit: a sample is due at 1.
    """

    young: YoungThreads = field(default_factory=YoungThreads)
    ran: int = -1
    waited: int = 0
    share: float = -1.0
    credit: float = field(default_factory=random.random)

    def due(self, schedstat: bytes) -> bool:
        """Is a thread that could run to be sampled now? As often as it had a processor, of the time in which it ran or
        waited for one: else ten threads on two processors would have ten seconds of processor time in each second.
        One that never had one is where it was born, however long it waits there.
        """
        ran, waited, turns = map(int, schedstat.split()[:3])
        if not turns:
            return False
        if self.ran < 0:
            self.ran, self.waited = ran, waited
        more, idle = ran - self.ran, waited - self.waited
        if more + idle >= WINDOW_NS:
            share = more / (more + idle)
            self.share = share if share < WHOLE else 1.0
            self.ran, self.waited = ran, waited
        is_young = self.share < 0
        self.credit += self.young.share if is_young else self.share
        taken = self.credit >= 1
        self.credit -= taken
        self.young.found(is_young, taken)
        return taken
