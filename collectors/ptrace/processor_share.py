"""A runnable thread's share of a processor, which decides how often it is sampled."""

from __future__ import annotations

import random

from pyprof.collectors.ptrace.young_threads import YoungThreads
from pyprof.records import dataclass, field

WINDOW_NS = 100_000_000
"""Time that a thread must run and wait before its share is known. The kernel updates both times at ticks and
switches.
"""
MIN_WHOLE_SHARE = 0.9
"""Share above which a thread counts as always running. The rest is caused by the profiler or by a few switches."""


@dataclass(eq=False, slots=True)
class ProcessorShare:
    """A thread's share of a processor.

    Attributes:
        young: Threads of the same processes whose share is not known yet.
        ran: Running time in ns when the share was last computed; -1 before.
        waited: Waiting time in ns at that moment.
        share: The share, or -1 if it is not known yet.
        credit: A sample is due when it reaches 1.
    """

    young: YoungThreads = field(default_factory=YoungThreads)
    ran: int = -1
    waited: int = 0
    share: float = -1.0
    credit: float = field(default_factory=random.random)

    def is_due(self, schedstat: bytes) -> bool:
        """Return True if a runnable thread should be sampled now.

        It is sampled in the share of its runnable time in which it had a processor. Otherwise ten threads on two
        processors would get ten seconds of processor time in each second. A thread that never had a processor is not
        sampled, however long it waits.
        """
        ran, waited, turns = map(int, schedstat.split()[:3])
        if not turns:
            return False
        if self.ran < 0:
            self.ran, self.waited = ran, waited
        more, idle = ran - self.ran, waited - self.waited
        if more + idle >= WINDOW_NS:
            share = more / (more + idle)
            self.share = share if share < MIN_WHOLE_SHARE else 1.0
            self.ran, self.waited = ran, waited
        is_young = self.share < 0
        self.credit += self.young.share if is_young else self.share
        taken = self.credit >= 1
        self.credit -= taken
        self.young.count_runnable(is_young, taken)
        return taken
