"""Subsampling of idle threads: which threads a round of samples checks, and with which weight.

To check a sleeping thread takes 3 us, 8 us with cold caches. For 500 threads at 100 Hz that is 15 % of a processor.
Where there are many, a thread that was asleep at its last checks is checked in one round of EVERY, chosen at random, or
of more, so that about MOST are checked in a round. If it runs then, its sample counts for all of these rounds. So the
expected time of each thread is the time that it ran.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collectors.ptrace.threads import Thread

EVERY = 8
MOST = 256
"""Sleeping threads that are checked in one round, about."""
MANY = 64
"""With less threads all are looked at in each round."""
STILL = 16
"""Looks in a row at which a thread slept, until it is looked at less often. Where there are more than USUAL threads, as
much fewer as there are more threads; so with SORT."""
USUAL = 512
SORT = 32
"""Rounds after which it is found out anew which threads are quiet."""
_LEAST = 2


class IdleSubsampling:
    """Of one process. random: uniform in [0, 1)."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._threads: list[Thread] = []
        self._awake: list[Thread] = []
        self._quiet: list[Thread] = []
        self._asked: list[Thread] = []
        self._left = 0
        self._every = EVERY

    def choose(self, threads: list[Thread]) -> list[tuple[Thread, int]]:
        """(thread, rounds that a look at it stands for)."""
        if len(threads) < MANY:
            return [(thread, 1) for thread in threads]
        woken = [thread for thread in self._asked if not thread.still]
        if woken:
            self._awake += woken
            self._quiet = [thread for thread in self._quiet if thread.still]
        if self._left == 0 or threads != self._threads:
            still, self._left = (max(most * USUAL // max(len(threads), USUAL), _LEAST) for most in (STILL, SORT))
            self._threads = threads
            self._awake = [thread for thread in threads if thread.still < still]
            self._quiet = [thread for thread in threads if thread.still >= still]
            self._every = max(EVERY, len(self._quiet) // MOST)
        self._left -= 1
        self._asked = self._quiet[int(self._random() * self._every) :: self._every]
        return [*((thread, 1) for thread in self._awake), *((thread, self._every) for thread in self._asked)]
