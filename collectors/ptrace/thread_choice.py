"""The selection of a process's threads: those of the recording, and of these the ones that a round of samples checks.

Checking a sleeping thread takes 3 us, or 8 us with cold caches. For 500 threads at 100 Hz that is 15 % of a processor.
So if a process has many threads, a thread that slept at its last checks is checked in one random round of
QUIET_INTERVAL. With more threads the distance is larger, so that a round checks about MAX_QUIET_CHECKS threads. If the
thread runs at a check, its sample counts for all of these rounds. So the expected time of each thread is the time that
it ran.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from pyprof.collectors.ptrace.threads import Thread
from pyprof.model.profile import ThreadInfo

QUIET_INTERVAL = 8
MAX_QUIET_CHECKS = 256
"""Approximate number of sleeping threads that one round checks."""
MIN_SUBSAMPLED_THREADS = 64
"""Number of threads of a process below which each round checks all of them."""
QUIET_AFTER_CHECKS = 16
"""Number of consecutive checks that find a thread asleep after which the thread is checked less often.

With more than USUAL_THREADS threads it is reduced in proportion; so is SORT_INTERVAL.
"""
USUAL_THREADS = 512
SORT_INTERVAL = 32
"""Number of rounds of samples after which threads are divided into active and quiet ones again."""
_MIN_INTERVAL = 2


class IdleSubsampling:
    """Subsampling of the idle threads of one process; `random` returns a number uniform in [0, 1)."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._threads: list[Thread] = []
        self._awake: list[Thread] = []
        self._quiet: list[Thread] = []
        self._asked: list[Thread] = []
        self._left = 0
        self._every = QUIET_INTERVAL

    def choose_threads(self, threads: list[Thread]) -> list[tuple[Thread, int]]:
        """Return the threads to check in this round, each with the number of rounds that its check stands for."""
        if len(threads) < MIN_SUBSAMPLED_THREADS:
            return [(thread, 1) for thread in threads]
        woken = [thread for thread in self._asked if not thread.asleep_checks]
        if woken:
            self._awake += woken
            self._quiet = [thread for thread in self._quiet if thread.asleep_checks]
        if self._left == 0 or threads != self._threads:
            still, self._left = (
                max(most * USUAL_THREADS // max(len(threads), USUAL_THREADS), _MIN_INTERVAL)
                for most in (QUIET_AFTER_CHECKS, SORT_INTERVAL)
            )
            self._threads = threads
            self._awake = [thread for thread in threads if thread.asleep_checks < still]
            self._quiet = [thread for thread in threads if thread.asleep_checks >= still]
            self._every = max(QUIET_INTERVAL, len(self._quiet) // MAX_QUIET_CHECKS)
        self._left -= 1
        self._asked = self._quiet[int(self._random() * self._every) :: self._every]
        return [*((thread, 1) for thread in self._awake), *((thread, self._every) for thread in self._asked)]


_NAMES_NS = 1_000_000_000

Wants = Callable[[int, int], bool]
"""Function (pid, tid) that returns True if the thread should be sampled."""
Describe = Callable[[int], ThreadInfo | None]
"""Function that returns the description of a thread by its tid, or None if the thread has ended."""


class ThreadChoice:
    """The choice of a process's threads that are recorded, and of those that one round of samples checks.

    Args:
        pattern: Pattern to find in names of threads. The names are read once a second, because most threads get their
            name after their start.
        wants: See Wants; None for all threads.
    """

    def __init__(self, pattern: re.Pattern[str] | None, wants: Wants | None) -> None:
        self._pattern = pattern
        self._wants = wants
        self._named: list[Thread] | None = None
        self._read_at = 0

    def forget_choices(self) -> None:
        """Forget which threads were selected, because threads have started or ended."""
        self._named = None

    def select_threads(self, threads: Mapping[int, Thread], describe: Describe) -> list[Thread]:
        """Return those of a process's threads that the user has selected."""
        found = self._by_name(threads, describe)
        wants = self._wants
        return found if wants is None else [each for each in found if wants(each.pid, each.tid)]

    def _by_name(self, threads: Mapping[int, Thread], describe: Describe) -> list[Thread]:
        if self._pattern is None:
            return list(threads.values())
        now = time.monotonic_ns()
        if self._named is None or now >= self._read_at:
            self._read_at = now + _NAMES_NS
            pattern, names = self._pattern, {tid: describe(tid) for tid in threads}
            fits = {tid for tid, info in names.items() if info is not None and pattern.search(info.name)}
            self._named = [thread for tid, thread in threads.items() if tid in fits]
        return self._named
