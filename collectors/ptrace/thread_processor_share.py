"""A runnable thread's share of a processor, which decides how often it is sampled.

A runnable thread either has a processor or waits for one. The kernel reports both times for a thread that lives long
enough (ptrace/threads.py). Shorter threads of a process tree are treated as one group. Their share is the processor
time of the tree, minus the time for which older threads are sampled, divided by how often a short thread was found.
Without that, four threads of a millisecond on one processor would get four times the time that they ran.
"""

from __future__ import annotations

import random

from pyprof.records import dataclass, field

_MIN_NS = 80_000_000
_KEPT = 0.7
"""Weight of a window's counts of runnable threads in the next window."""
_MAX_PAID = 0.5
"""Maximum share of a window's samples of young threads that is left out because there were too many before."""
_MAX_BEHIND = 4
"""Maximum number of missing samples of young threads that are made up for; more were never possible."""


class ShortThreads:
    """The short-lived threads of one process tree, which are sampled as one.

    Samples that were taken too often, while the threads' share of a processor was not known, are compensated later.

    Attributes:
        share: Probability with which a young thread that is found runnable should be sampled.
        rounds: Number of sampling times since update_share().
        born: Number of threads of any age that were found.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self.rounds = self.born = 0
        self._runnable = self._taken = self._others = 0
        self._expected = self._found = self._ahead = 0.0
        self._since_ns = self._spent_ns = -1

    def count_runnable(self, young: bool, sampled: bool) -> None:
        """Count a young runnable thread, and whether it is sampled."""
        self._runnable += young
        self._taken += sampled and young
        self._others += sampled and not young

    def count_older(self, sampled: int) -> None:
        """Count whether an older runnable thread was sampled."""
        self._others += sampled

    def update_share(self, now_ns: int, spent_ns: int) -> None:
        """Update the share in which young runnable threads are sampled; `spent_ns` is the tree's processor time since
        the recording began.
        """
        elapsed = now_ns - self._since_ns
        if self._since_ns < 0:
            self._since_ns, self._spent_ns, self.rounds = now_ns, spent_ns, 0
        elif elapsed >= _MIN_NS:
            ran = (spent_ns - self._spent_ns) / elapsed * self.rounds
            due = max(ran - self._others, 0)
            self._ahead = max(self._ahead + self._taken - due, -_MAX_BEHIND)
            paid = min(self._ahead, _MAX_PAID * due)
            self._expected = _KEPT * self._expected + due
            self._found = _KEPT * self._found + self._runnable
            if self._found >= 1:
                self.share = min(max((self._expected - paid) / self._found, 0), 1.0)
            self._since_ns, self._spent_ns = now_ns, spent_ns
            self._runnable = self._taken = self._others = self.rounds = 0


WINDOW_NS = 100_000_000
"""Time in ns that a thread must run and wait before its share of a processor is known. The kernel updates both times at
ticks and switches.
"""
MIN_WHOLE_SHARE = 0.9
"""Share of a processor above which a thread counts as always running. The rest is caused by the profiler or by a few
switches.
"""


@dataclass(eq=False, slots=True)
class ProcessorShare:
    """A runnable thread's share of a processor.

    Attributes:
        young: Threads of the same processes whose share is not known yet.
        ran: Running time in ns when the share was last computed; -1 before.
        waited: Waiting time in ns at that moment.
        share: The share, or -1 if it is not known yet.
        credit: Sum of shares; a sample is due when it reaches 1.
    """

    young: ShortThreads = field(default_factory=ShortThreads)
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
