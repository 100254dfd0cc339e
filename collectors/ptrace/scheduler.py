"""When the threads are sampled, and when a batch leaves."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from pyprof.collectors.sampling_clock import SamplingClock
from pyprof.options import HOLD, CollectOptions

_SLEEP_NS = 20_000_000
_PENDING_SLEEP_NS = 300_000  # another thread of ours may have taken the SIGCHLD that says so
_FIRST_FLUSH_NS = 20_000_000
_WALK_NS = 100_000_000
"""So long the walk of a batch may take, about: who ends a recording waits for that of the last one."""
REST_NS = 50_000
"""So long we sleep at least, for the others to have our processor. A sampling time while we work would find that none
of them runs there; and those while we wait for a processor are missed, so that most of the others would be such."""


class Scheduler:
    """stopping: nothing is sampled any more. ticks: sampling times that were kept, in ticking_ns. visits: processors to
    which we go at each of them, one after the other; 1 where we look at all from one.
    """

    def __init__(self, options: CollectOptions) -> None:
        self.stopping = False
        self.ticking_ns = 0
        self.visits = 1
        self._kept = self._missed = 0.0
        self._began_ns = 0
        self._options = options
        self.handover = options.handover
        self._soon_ns = round(options.flush_s * 1e9)
        self._most_ns = self._soon_ns if options.idle else HOLD * self._soon_ns  # sleepers wait for what we learn
        self._walkable_ns = self._most_ns
        self._flush_every_ns = 0
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self._began_ns = self._flushed_ns = self._alive_ns = time.monotonic_ns()
        self._start_clock()

    def _start_clock(self) -> None:
        rate_hz = self._options.rate_hz * self.visits
        limit, stride = self._options.max_overhead, self._options.stride
        self.clock = SamplingClock(rate_hz, limit, time.monotonic_ns(), random.random, stride)
        self._due_ns: int | None = None

    def visit(self, processors: int) -> None:
        """From now on go to so many."""
        self._missed += self.clock.skipped / self.visits
        self.visits = processors
        self._start_clock()

    def ahead(self, most_ns: int) -> list[tuple[int, int]]:
        """The next sampling times, and when it is too late for each, until a batch is due; at most in most_ns. None
        where not every one is used.
        """
        now, clock = time.monotonic_ns(), self.clock
        until = min(now + most_ns, self._flushed_ns + self._flush_every_ns, self.handover.next_ns)
        if not clock.is_plain or self.visits != 1 or now + clock.period_ns > until:
            return []
        first = self._due(now)
        if clock.weight != 1:  # this one was chosen when not every one was used
            return []
        found = [(first, clock.slot_after(0)[1])]
        while found[-1][1] < until:
            found.append(clock.slot_after(len(found)))
        return found

    def passed(self, slots: int, used: int, shift_ns: int) -> None:
        """Count sampling times of ahead() that are over, and those of them that were used.

        Args:
            shift_ns: the grid's shift after them (SamplingClock.shift_ns).
        """
        if slots:
            self.clock.passed(slots, used, shift_ns)
            self._due_ns = None

    def _due(self, now: int) -> int:
        """The next sampling time."""
        if self._due_ns is None:
            self._due_ns = self.clock.next_due(now + REST_NS)
        return self._due_ns

    def wait(self, look_after: Callable[[int], bool]) -> bool:
        """Sleep until a sampling time. False if it is time for a sign of life first, or to stop. look_after: sleeps for
        so many nanoseconds at most while threads are still to stop; False if there are none.
        """
        due = self._due(time.monotonic_ns())
        alive_ns = self._alive_ns + max(self._soon_ns, _SLEEP_NS)
        while not self.stopping:
            now = time.monotonic_ns()
            left = due - now
            if left <= 0:
                self._due_ns = None
                return True
            if now >= min(alive_ns, self.handover.next_ns) and left > _SLEEP_NS:
                return False
            if not look_after(min(left, _PENDING_SLEEP_NS)):
                time.sleep(min(left, _SLEEP_NS) / 1e9)
        return False

    def ticked(self, rounds: int = 1) -> None:
        """All threads were looked at, so often."""
        self._kept += rounds / self.visits
        passed_ns = time.monotonic_ns() - self._began_ns
        self.ticking_ns = max(passed_ns, round(self.ticks * self.clock.period_ns * self.visits))

    @property
    def ticks(self) -> int:
        return round(self._kept)

    @property
    def skipped(self) -> int:
        """Sampling times that were missed."""
        return round(self._missed + self.clock.skipped / self.visits)

    @property
    def slots(self) -> tuple[int, int]:
        """Sampling times so far, those kept and those missed."""
        return self.ticks, self.skipped

    @property
    def is_flush_due(self) -> bool:
        """The first batch leaves after the first sampling time, so that learning begins."""
        now = time.monotonic_ns()
        return now - self._flushed_ns >= self._flush_every_ns or now >= self.handover.next_ns

    @property
    def is_sign_due(self) -> bool:
        """Is a sign of life due, though no batch is?"""
        return time.monotonic_ns() - self._alive_ns >= self._soon_ns

    def flushed(self, samples: bool) -> None:
        """A batch leaves. samples: it is not empty; those to come wait longer then, up to HOLD times flush_s, as long
        as their walk is short.
        """
        self._flushed_ns = self._alive_ns = time.monotonic_ns()
        if samples:
            self._flush_every_ns = min(max(2 * self._flush_every_ns, _FIRST_FLUSH_NS), self._walkable_ns)

    def showed_life(self) -> None:
        """Without samples."""
        self._alive_ns = time.monotonic_ns()

    def walked(self, sampled_ns: int, took_ns: int) -> None:
        """The walk of the samples of some time took so long."""
        if sampled_ns > 0 and took_ns > 0:
            self._walkable_ns = min(max(sampled_ns * _WALK_NS // took_ns, self._soon_ns), self._most_ns)
            self._flush_every_ns = min(self._flush_every_ns, self._walkable_ns)

    def hasten(self) -> None:
        """There is something to learn: samples wait no longer than flush_s for now."""
        self._flush_every_ns = min(self._flush_every_ns, self._soon_ns)
