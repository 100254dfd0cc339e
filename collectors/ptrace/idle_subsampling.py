"""Subsampling of idle threads: the threads that a round of samples checks, and their weights.

Checking a sleeping thread takes 3 us, or 8 us with cold caches. For 500 threads at 100 Hz that is 15 % of a processor.
So if a process has many threads, a thread that slept at its last checks is checked in one random round of EVERY. With
more threads the distance is larger, so that a round checks about MOST threads. If the thread runs at a check, its
sample counts for all of these rounds. So the expected time of each thread is the time that it ran.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collectors.ptrace.threads import Thread

EVERY = 8
MOST = 256
"""Approximate number of sleeping threads that one round checks."""
MANY = 64
"""Number of threads below which each round checks all."""
STILL = 16
"""Number of consecutive checks that find a thread asleep before it is checked less often.

With more than USUAL threads it is reduced in proportion; so is SORT.
"""
USUAL = 512
SORT = 32
"""Number of rounds after which threads are divided into active and quiet ones again."""
_LEAST = 2


class IdleSubsampling:
    """Subsampling for one process; `random` returns a number uniform in [0, 1)."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._threads: list[Thread] = []
        self._awake: list[Thread] = []
        self._quiet: list[Thread] = []
        self._asked: list[Thread] = []
        self._left = 0
        self._every = EVERY

    def choose(self, threads: list[Thread]) -> list[tuple[Thread, int]]:
        """Return the threads to check, each with the number of rounds that its check stands for."""
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
