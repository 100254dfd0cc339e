"""Subsampling of idle threads: which threads a round of samples checks, and with which weight.

To check a sleeping thread takes 3 us. For 500 threads at 100 Hz that is 15 % of a processor. Where there are many, a
thread that was asleep at its last checks is checked in one round of EVERY, chosen at random. If it runs then, its
sample counts for EVERY rounds. So the expected time of each thread is the time that it ran.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collectors.ptrace.threads import Thread

EVERY = 8
MANY = 64
"""With less threads all are looked at in each round."""
STILL = 16
"""Looks in a row at which a thread slept, until it is looked at less often."""
_SORT = 32
"""Rounds after which it is found out anew which threads are quiet."""


class IdleSubsampling:
    """Of one process. random: uniform in [0, 1)."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._threads: list[Thread] = []
        self._awake: list[Thread] = []
        self._quiet: list[Thread] = []
        self._asked: list[Thread] = []
        self._left = 0

    def choose(self, threads: list[Thread]) -> list[tuple[Thread, int]]:
        """(thread, rounds that a look at it stands for)."""
        if len(threads) < MANY:
            return [(thread, 1) for thread in threads]
        woken = [thread for thread in self._asked if not thread.still]
        if woken:
            self._awake += woken
            self._quiet = [thread for thread in self._quiet if thread.still]
        if self._left == 0 or threads != self._threads:
            self._left, self._threads = _SORT, threads
            self._awake = [thread for thread in threads if thread.still < STILL]
            self._quiet = [thread for thread in threads if thread.still >= STILL]
        self._left -= 1
        self._asked = self._quiet[int(self._random() * EVERY) :: EVERY]
        return [*((thread, 1) for thread in self._awake), *((thread, EVERY) for thread in self._asked)]
