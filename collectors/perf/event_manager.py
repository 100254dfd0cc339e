"""The perf events of a recording: their scope, the size of their stack copies, and the time that they have
counted.

The kernel cannot change the copy size of an event, so new events replace the old ones.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyprof.collector_control import Stride
from pyprof.collectors.base import Feedback
from pyprof.collectors.cpu_time_accounting import EndedThreadTimes
from pyprof.collectors.perf.cpu_wide_events import Losses, Scope
from pyprof.collectors.perf.event_attributes import MOST_STACK, PerfNotAllowed
from pyprof.collectors.perf.per_thread_events import FOREVER_NS, EventSet, RingReader
from pyprof.collectors.perf.random_sampling import LIFE_PERIODS, SampleCounter, Thinning
from pyprof.collectors.perf.ring_buffer_records import OVERHEAD, Scan
from pyprof.collectors.perf.stack_copy_size import SLACK_S, StackSize
from pyprof.collectors.perf.time_after_last_record import LastRecords
from pyprof.options import CollectOptions

if TYPE_CHECKING:
    from pyprof.collectors.perf.cpu_wide_events import Silent

_FIRST_BATCHES_S = 0.6
_MIN_FIRST = 8192
_SOON_S = 0.25
_MAX_LOST_SHARE = 0.05
"""Share of lost records in one reading of the rings above which stack copies become smaller."""
_MIN_WAIT_S = 0.006
"""Minimum time in seconds in which a quarter of a ring may fill. It limits how many records per sample are made."""


class Ticks:
    """A count of the sampling times that the kernel kept: the time for which perf events counted, and the number of
    records.

    An event counts while its thread is on a processor, and makes a record each 1/rate seconds of that. Both numbers are
    read at the same moment.

    Args:
        rate_hz: Sampling rate.
        by_records: True if the counted time includes time without records, such as kernel time that is left
            out or idle time of processors. Then only the numbers of records and lost records tell the
            sampling times.
        stride: Use only every n-th sample.

    Attributes:
        used: Number of sample records that found room and that the stride keeps. For events on processors it
            includes samples of processes that are not recorded.
        ticking_ns: Length of the time in nanoseconds for which samples were due.
    """

    def __init__(self, rate_hz: float, by_records: bool, stride: Stride) -> None:
        self.used, self.ticking_ns = 0.0, 0
        self._stride = stride
        self._by_records = by_records
        self._period_ns = round(1e9 / rate_hz)
        self._lost, self._closed_ns = 0.0, 0

    def took(self, found: Scan, lost: float, events: EventSet | None) -> None:
        """Add the samples and losses of one reading of perf's ring buffers to the count.

        Args:
            found: The records that were read.
            lost: Total number of sampling times whose records found no room.
            events: The current events, None if all are closed.
        """
        taken = sum(map(len, found.samples))
        self.used += taken / self._stride.every
        if self._by_records:
            self._closed_ns += round((taken + lost - self._lost) * self._period_ns)
            self.ticking_ns = self._closed_ns
        else:
            self.ticking_ns = self._closed_ns + (events.counted_ns() if events is not None else 0)
        self._lost = lost

    def restart(self, events: EventSet) -> None:
        """Forget all earlier samples and the time that events have counted until now."""
        self.used, self.ticking_ns = 0.0, 0
        self._closed_ns = 0 if self._by_records else -events.counted_ns()

    def close(self, events: EventSet) -> None:
        """Close perf events, because new ones replace them, and keep the time that they counted."""
        if not self._by_records:
            self._closed_ns += events.counted_ns()
        events.close()


class EventManager:
    """The perf events of a recording: opening, replacement, rates, and what they have counted.

    Attributes:
        scope: Current scope of the events.
        ticks: Sampling rate that the kernel reached.
        lost: Number of sampling times whose records found no room.
    """

    def __init__(self, scope: Scope, options: CollectOptions, reader: RingReader) -> None:
        self.scope = scope
        self.ticks = Ticks(options.rate_hz, scope.event.user_only or scope.processors, options.stride)
        self._rate_hz = options.rate_hz
        self._reader = reader
        self._ring_size = size = reader.rings.size
        # a ring that holds less than a few records loses them, and cannot even report it
        most = max(min(options.stack_size, MOST_STACK, size // 4) & ~7, 8)
        # the first batches take long, because tables are read for the first time
        room = max(round(size / (options.rate_hz * _FIRST_BATCHES_S)), _MIN_FIRST) & ~7
        self._size = StackSize(most, room)
        self._events: EventSet | None = None
        self._thinning = Thinning()
        self._last_records = LastRecords()
        self._multiplied = False
        self._lost_records = 0
        self._losses = Losses()
        self._counter = SampleCounter(reader.rings)
        self._counted: Counter[int] = Counter()
        self._change_ns = 0
        self.lost = 0.0

    @property
    def stack_size(self) -> int:
        """Number of bytes of each thread's stack that the kernel copies to a sample."""
        return self._size.bytes

    def begin(self, named: Iterable[int], children: Callable[[], list[int]]) -> list[int]:
        """Open perf events on all existing processes of the recording.

        Args:
            named: Pids of the selected processes.
            children: Function that returns the pids of their children.

        Returns:
            Pids of all recorded processes.

        Raises:
            PerfNotAllowed: The kernel permits no event.
            ProcessLookupError: The processes have ended.
        """
        events = self._events = self._fresh(self._size.bytes)
        if self.scope.processors:  # before the children are found: the events report later ones
            self.scope.attach_events(events, named, self._reader.read_forks)
            return [*named, *children()]
        pids = [*named, *children()]
        self.scope.attach_events(events, pids, self._reader.read_forks)
        return pids

    def add_process(self, pid: int) -> None:
        """Open perf events on one more process, unless events on processors already cover it.

        Raises:
            PerfNotAllowed: The kernel permits no event.
            ProcessLookupError: The process has ended.
        """
        if self._events is not None and not self.scope.processors:
            self._events.attach([pid], self._reader.read_forks)

    @property
    def counting(self) -> bool:
        """True if any perf event is open."""
        return self._events is not None

    def revive(self) -> Silent:
        """Open perf events on processors that came online. Events on threads need no change.

        Returns:
            The time in ns for which a processor had no event, by processor with a new event.
        """
        return self._events.revive() if self._events is not None else {}

    def change_rates(self) -> int:
        """Change the rates of perf events at random if the next change is due, so that no program runs in
        step with them.

        Returns:
            Time until the next call in nanoseconds.
        """
        if self._events is None or not self._has_random_rates:
            return FOREVER_NS
        now = time.monotonic_ns()
        if now >= self._change_ns:
            self._counter.count(self._counted)
            self._events.change_rates(self._counted)
            self._counted.clear()
            self._change_ns = now + round(random.uniform(0.5, 1) * LIFE_PERIODS * 1e9 / self._rate_hz)
        return self._change_ns - now

    @property
    def _has_random_rates(self) -> bool:
        """True if the rates of perf events vary at random. They do for events on processors. Events on
        threads have fixed rates, because inherited events would keep their first rate.
        """
        return self.scope.processors and self.scope.samples

    def scan(self, until_ns: int) -> Scan:
        """Return the records in perf's rings up to a time. If the events make several records per sample, one
        of them is chosen at random and the others are left out.
        """
        if self._has_random_rates:
            self._counter.count(self._counted)
        found = self._reader.scan_rings(until_ns)
        if not self.scope.processors:
            self._last_records.add_records(
                found, self._reader.rings.words, round(1e9 / self._rate_hz / self._thinning.factor)
            )
        found.samples = self._thinning.thin_records(self._reader.rings.words, found.samples)
        return found

    def scan_opening(self, until_ns: int) -> Scan:
        """Return the records in perf's ring buffers from the time before the recording began. The count of
        samples restarts after them.
        """
        found = self.scan(until_ns)
        if self._events is not None:
            self.ticks.restart(self._events)
        return found

    def took(self, found: Scan, lost: int) -> None:
        """Count the records and losses of one reading of perf's rings. If many are lost, later stack copies
        become smaller.

        Args:
            found: The records that were read.
            lost: Total number of records that found no room.
        """
        fresh = lost - self._lost_records
        if fresh > _MAX_LOST_SHARE * (fresh + sum(map(len, found.samples))):
            self._size.limit_size(time.monotonic_ns())
        elif not fresh:
            self._size.relax_limit(time.monotonic_ns())
        self.lost += fresh / self._thinning.factor
        self._lost_records = lost
        self.ticks.took(found, self.lost, self._events)

    def endings(self) -> EndedThreadTimes | None:
        """Return the estimated time that threads ran after their last records. Return None if no time is
        missing, because time in the kernel is sampled or events are on processors.
        """
        if self.scope.processors or not self.scope.event.user_only:
            return None
        return self._last_records.estimate_endings(round(self.lost * 1e9 / self._rate_hz))

    def unwound(self, found: Scan, alive: Iterable[int]) -> None:
        """Update the perf events after all samples of the last reading of the ring buffers were unwound.

        Events of ended threads are closed. All events are replaced if their stack copies are too short or too long, or
        if records of other processes fill the ring buffers.

        Args:
            found: The records of the last reading.
            alive: Pids of the processes to sample.
        """
        if self._events is not None:
            self._events.update(found.others)
        if self._narrow():
            self._replace(self._size.bytes, alive)
        elif size := self._size.choose_change():
            self._replace(size, alive)

    def multiply(self, alive: Iterable[int]) -> None:
        """Make several perf records per sample from now on, because much time of short-lived threads falls between two
        records.

        Events on processors do not need that and stay unchanged.

        Args:
            alive: Pids of the processes to sample.
        """
        if self._events is None or self.scope.processors or self._multiplied:
            return
        self._multiplied = True
        self._size.minimize_size()
        self._replace(self._size.bytes, alive)

    def learn(self, feedback: Feedback) -> None:
        self._size.learn(feedback)

    def forget(self) -> None:
        """Forget the learned size of stack copies, because other threads are sampled from now on."""
        self._size.forget()

    def longest_wait_ns(self) -> int:
        """Return the time in nanoseconds for which perf's ring buffers may fill before they must be read.

        After that time, records of the next SLACK_S seconds or a quarter of the ring buffer must still find
        room. If records of all processes of the machine are filtered, half of the ring buffer must.
        """
        size, record = self._ring_size, OVERHEAD + self._size.bytes
        rate = self._rate_hz * self._thinning.factor
        fill = min(size // 2 if self.scope.filtered else size * 3 // 4, max(size - SLACK_S * rate * record, size / 4))
        return round(max(fill / record, 1) * 1e9 / rate)

    def _narrow(self) -> bool:
        """Replace perf events on processors by events on threads if samples of other processes fill the rings too fast.
        Return True if that happened.
        """
        soon = self.scope.samples and self._size.wanted * self._rate_hz * _SOON_S > self._ring_size / 2
        if not self.scope.filtered or not (soon or self._losses.has_too_many(self._lost_records)):
            return False
        self.scope = self.scope.narrow_to_threads()
        return True

    def _fresh(self, size: int) -> EventSet:
        if self._multiplied:
            most_hz = self._ring_size / 4 / _MIN_WAIT_S / (OVERHEAD + size)
            self._thinning.multiply(self._rate_hz, most_hz, time.monotonic_ns())
        elif self.scope.samples and not self.scope.processors:
            self._thinning.start_thinning(self._rate_hz, time.monotonic_ns())
        return EventSet(self.scope.event, self._rate_hz * self._thinning.factor, size, self._reader.rings)

    def _replace(self, size: int, alive: Iterable[int]) -> None:
        if self._events is None:
            return
        fresh = self._fresh(size)
        try:
            self.scope.attach_events(fresh, alive, self._reader.read_forks)
        except (ProcessLookupError, PerfNotAllowed):
            fresh.close()
        else:
            fresh.take_over(self._events)
            self.ticks.close(self._events)
            self._events = fresh
        self._size.set_size(self._events.stack_size)

    def close(self) -> None:
        """Close all perf events, and keep the time that they counted."""
        if self._events is not None:
            self.ticks.close(self._events)
            self._events = None
