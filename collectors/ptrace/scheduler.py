"""The times at which threads are sampled and at which a batch is yielded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from pyprof.collectors.sampling_clock import SamplingClock
from pyprof.options import HOLD, CollectOptions

_SLEEP_NS = 20_000_000
_PENDING_SLEEP_NS = 300_000  # another thread of the profiler may have received the SIGCHLD that reports it
_FIRST_FLUSH_NS = 20_000_000
_WALK_NS = 100_000_000
"""Approximate maximum time in ns for the walk of a batch. The end of a recording waits for the last walk."""
REST_NS = 50_000
"""Minimum sleep in ns before a sampling time, so that other threads run on the sampler's processor.

If the sampler worked until a sampling time, no other thread would run there. Sampling times while the sampler waits for
a processor are missed, so the remaining ones would mostly be of that kind.
"""


class Scheduler:
    """The schedule of sampling times and batches of the ptrace collector.

    Attributes:
        stopping: True if sampling has ended.
        ticks: Number of sampling times that were kept.
        ticking_ns: Time in which the sampling times were due.
        visits: Number of processors that are visited one after the other at each sampling time; 1 if all threads are
            sampled from one.
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
        # sleeping threads wait for what the walks teach
        self._most_ns = self._soon_ns if options.idle else HOLD * self._soon_ns
        self._walkable_ns = self._most_ns
        self._flush_every_ns = 0
        self.start()

    def start(self) -> None:
        """Start the schedule of sampling times now."""
        self._began_ns = self._flushed_ns = self._alive_ns = time.monotonic_ns()
        self._start_clock()

    def _start_clock(self) -> None:
        rate_hz = self._options.rate_hz * self.visits
        limit, stride = self._options.max_overhead, self._options.stride
        self.clock = SamplingClock(rate_hz, limit, time.monotonic_ns(), random.random, stride)
        self._due_ns: int | None = None

    def set_visits(self, processors: int) -> None:
        """Sample from this number of processors in turn from now on."""
        self._missed += self.clock.skipped / self.visits
        self.visits = processors
        self._start_clock()

    def take_future_times(self, most_ns: int) -> list[tuple[int, int]]:
        """Return the next sampling times until a batch is due, at most in most_ns, each with the time at which it is
        too late.

        The result is empty if not every sampling time is used.
        """
        now, clock = time.monotonic_ns(), self.clock
        until = min(now + most_ns, self._flushed_ns + self._flush_every_ns, self.handover.next_ns)
        if not clock.is_plain or self.visits != 1 or now + clock.period_ns > until:
            return []
        first = self._due(now)
        if clock.weight != 1:  # it was chosen when not every slot was used
            return []
        found = [(first, clock.slot_after(0)[1])]
        while found[-1][1] < until:
            found.append(clock.slot_after(len(found)))
        return found

    def count_passed(self, slots: int, used: int, shift_ns: int) -> None:
        """Count sampling times of take_future_times() that are over.

        Args:
            slots: Number of sampling times that are over.
            used: Number of them that were used.
            shift_ns: The grid's shift after them (SamplingClock.shift_ns).
        """
        if slots:
            self.clock.advance(slots, used, shift_ns)
            self._due_ns = None

    def _due(self, now: int) -> int:
        """Return the next sampling time in monotonic nanoseconds."""
        if self._due_ns is None:
            self._due_ns = self.clock.next_due(now + REST_NS)
        return self._due_ns

    def wait(self, look_after: Callable[[int], bool]) -> bool:
        """Sleep until a sampling time. Return False if an empty batch is due first, or sampling stops.

        Args:
            look_after: Handles threads that have not stopped yet, and sleeps for at most the given nanoseconds. It
                returns False if there are none.
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

    def count_rounds(self, rounds: int = 1) -> None:
        """Count rounds of samples that were made at sampling times."""
        self._kept += rounds / self.visits
        passed_ns = time.monotonic_ns() - self._began_ns
        self.ticking_ns = max(passed_ns, round(self.ticks * self.clock.period_ns * self.visits))

    @property
    def ticks(self) -> int:
        return round(self._kept)

    @property
    def skipped(self) -> int:
        """Number of sampling times that were missed."""
        return round(self._missed + self.clock.skipped / self.visits)

    @property
    def slots(self) -> tuple[int, int]:
        """The numbers of (kept, missed) sampling times so far."""
        return self.ticks, self.skipped

    @property
    def is_flush_due(self) -> bool:
        """True if a batch of samples is due. The first one is due after the first sampling time, so that learning
        begins.
        """
        now = time.monotonic_ns()
        return now - self._flushed_ns >= self._flush_every_ns or now >= self.handover.next_ns

    @property
    def is_sign_due(self) -> bool:
        """True if an empty batch is due to show that the collector is alive."""
        return time.monotonic_ns() - self._alive_ns >= self._soon_ns

    def note_flush(self, samples: bool) -> None:
        """Note that the collector yields a batch, and choose how long later samples wait.

        If it has samples, later ones wait longer, up to HOLD times flush_s, as long as their walk is short.
        """
        self._flushed_ns = self._alive_ns = time.monotonic_ns()
        if samples:
            self._flush_every_ns = min(max(2 * self._flush_every_ns, _FIRST_FLUSH_NS), self._walkable_ns)

    def note_empty_batch(self) -> None:
        """Note that an empty batch was yielded."""
        self._alive_ns = time.monotonic_ns()

    def note_walk(self, sampled_ns: int, took_ns: int) -> None:
        """Learn how long the walk of a batch took whose samples were taken at some time."""
        if sampled_ns > 0 and took_ns > 0:
            self._walkable_ns = min(max(sampled_ns * _WALK_NS // took_ns, self._soon_ns), self._most_ns)
            self._flush_every_ns = min(self._flush_every_ns, self._walkable_ns)

    def limit_wait(self) -> None:
        """Limit the time for which samples wait for their batch to flush_s, because there is something to learn from
        them.
        """
        self._flush_every_ns = min(self._flush_every_ns, self._soon_ns)
