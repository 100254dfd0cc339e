"""Perf events on processors: samples of all threads on them, an alarm for new executable mappings, and the
choice between events on processors and on threads.

When a processor goes offline, also for a suspend, the kernel takes its events off (perf_event_exit_cpu). It does not
restore them: they no longer count, and nothing reports that. So the events are read from time to time to see if they
count.

The alarm wakes the collector when any process of the machine maps code, as exec and dlopen do. The process
may then need another source of samples. The rings of samples cannot wake the collector for that, because each
sample would wake it as well. So these events have separate rings. Their records are never read: the collector
looks for new processes in the rings of samples, which have the same records.

An event on a thread counts that thread's own time. If a new thread inherits it, it begins a new period, so a thread
that lives shorter than a period is never sampled. On a processor the event counts all threads' time, so each moment is
equally likely to be sampled. Samples of other processes are dropped when the rings are read. Events on processors need
CAP_PERFMON or a kernel.perf_event_paranoid of 0 or less.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterable

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.cpu_time_accounting import LostSamples
from pyprof.collectors.linux import libc
from pyprof.collectors.perf.event_attributes import (
    Event,
    PerfNotAllowed,
    choose_event,
    counted_ns,
    mapping_reporter,
    refusal,
)
from pyprof.collectors.perf.per_thread_events import EVERY_THREAD, EventSet, Fork
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.options import CollectOptions

_CHECK_INTERVAL_NS = 2_000_000_000

Silent = dict[int, int]
"""The maximum time in ns for which a processor had no counting perf event, by processor."""


class ProcessorEvents:
    """Perf events on processors, one for each.

    The events must be opened with PERF_FORMAT_TOTAL_TIME_RUNNING.

    Args:
        cpus: The processors.
        open_on: Function that opens an event on a processor and returns its descriptor, or a negative number if
            the processor is offline.
        clock: Monotonic clock in nanoseconds.

    Attributes:
        fds: Descriptors by processor.
    """

    def __init__(
        self, cpus: Iterable[int], open_on: Callable[[int], int], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Open a perf event on each processor. If open_on raises an error, none is left open."""
        self.fds: dict[int, int] = {}
        self._open_on = open_on
        self._clock = clock
        self._counted: dict[int, int] = {}
        self._alive_ns: dict[int, int] = {}
        self._silent_before: Silent = {}
        self._looked_ns = clock()
        try:
            for cpu in cpus:
                self._begin(cpu, self._looked_ns)
        except BaseException:
            self.close()
            raise

    def _begin(self, cpu: int, now: int) -> bool:
        fd = self._open_on(cpu)
        if fd < 0:
            return False
        self.fds[cpu] = fd
        self._counted[cpu], self._alive_ns[cpu] = 0, now
        return True

    def reopen_events(self, online: Callable[[], Iterable[int]]) -> Silent:
        """Replace perf events that no longer count, and open events on new processors. This checks at most every two
        seconds.

        Returns:
            The time in ns for which a processor had no event, by processor with a new event.
        """
        now, before = self._clock(), self._looked_ns
        if now < before + _CHECK_INTERVAL_NS:
            return {}
        self._looked_ns = now
        found, self._silent_before = self._silent_before, {}
        for cpu in online():
            since = self._alive_ns.get(cpu, before)
            if not self._counts(cpu, now) and self._renew(cpu, now):
                found[cpu] = now - since
        return found

    def take_over(self, old: ProcessorEvents) -> None:
        """Continue the checks of a replaced set of perf events. Processors on which the old events no longer
        counted are reported by the next reopen_events().

        Args:
            old: The replaced events, which are still open.
        """
        now = self._clock()
        self._silent_before |= old._silent_before
        for cpu, since in old._alive_ns.items():
            fd = old.fds.get(cpu, -1)
            if fd >= 0 and counted_ns(fd) < counted_ns(fd):
                continue
            if cpu in self.fds:
                self._silent_before[cpu] = now - since
            else:
                self._alive_ns[cpu] = since

    def _counts(self, cpu: int, now: int) -> bool:
        """Return True if a processor's perf event has counted since the last check."""
        counted = counted_ns(self.fds[cpu]) if cpu in self.fds else 0
        if counted <= self._counted.get(cpu, 0):
            return False
        self._counted[cpu], self._alive_ns[cpu] = counted, now
        return True

    def _renew(self, cpu: int, now: int) -> bool:
        old = self.fds.get(cpu, -1)
        with contextlib.suppress(CollectorRefused, OSError):
            if self._begin(cpu, now):
                if old >= 0:
                    os.close(old)
                return True
        return False

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()


def count_missed_samples(silent: Silent, rate_hz: float, others: LostSamples) -> LostSamples:
    """Return the losses in `others`, increased by the samples that may be missing because processors were
    offline.

    The result says that samples may also be missing for other reasons.
    """
    return LostSamples(others.times + sum(silent.values()) * rate_hz / 1e9, False)


def describe_missed_samples(silent: Silent) -> Note:
    which = ", ".join(map(str, sorted(silent)))
    return make_note("processors_came_back", cpus=which, seconds=sum(silent.values()) / 1e9)


_EVERY_THREAD = -1
_RING_BYTES = 2 * mmap.PAGESIZE
"""Size in bytes of a perf ring's mapping: one page for its head, and one for its records."""


class MappingAlarm:
    """Perf events, one on each processor, whose descriptors become readable when any process makes a new
    executable mapping.

    A processor that comes online later has no event. Mappings there are found when the next batch is read.

    Attributes:
        fds: The descriptors.
    """

    def __init__(self, cpus: Iterable[int]) -> None:
        """Open the perf events that report new executable mappings.

        Args:
            cpus: The processors.

        Raises:
            PerfNotAllowed: The kernel permits no such event or ring.
        """
        self.fds: list[int] = []
        self._rings: list[mmap.mmap] = []
        attr = mapping_reporter()
        try:
            for cpu in cpus:
                self._open(attr, cpu)
        except BaseException:
            self.close()
            raise

    def _open(self, attr: bytes, cpu: int) -> None:
        fd = libc.perf_event_open(attr, _EVERY_THREAD, cpu)
        if -fd == errno.ENODEV:  # the processor went offline
            return
        if fd < 0:
            raise refusal(-fd, _EVERY_THREAD)
        self.fds.append(fd)
        try:
            # a ring that may not be written to is never full: the kernel overwrites its oldest records
            self._rings.append(mmap.mmap(fd, _RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ))
        except OSError as error:
            raise refusal(error.errno or errno.EPERM, _EVERY_THREAD) from None

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        for fd in self.fds:
            os.close(fd)
        self._rings.clear()
        self.fds.clear()


_MAX_LOST = 32
_FIRST_NS = 2_000_000_000


class Losses:
    """A check whether too many perf records of events on processors are lost. If so, the collector must use
    events on threads, which make fewer records.

    Losses in the first two seconds do not count, because unwind tables are then read for the first time and
    the ring buffers fill meanwhile. A change has a cost: events on threads sample other moments of threads
    that run briefly and often (docs/sampling.md).
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._first_until_ns = clock() + _FIRST_NS
        self._first = 0

    def has_too_many(self, lost: int) -> bool:
        """Return True if too many perf records were lost.

        Args:
            lost: Total number of lost records in this recording.
        """
        if self._clock() < self._first_until_ns:
            self._first = lost
        return lost - self._first > _MAX_LOST


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a recording's perf events: they are on processors, or on the recorded threads.

    Attributes:
        event: The perf event that makes the samples.
        processors: True if the events are on processors, False if they are on threads.
        everything: True if all processes belong to the recording.
        on_threads: Event to use if the scope is changed from processors to threads.
        samples: True if the event makes samples in addition to records of forks, mappings and so on.
    """

    event: Event
    processors: bool
    everything: bool
    on_threads: Event | None = None
    samples: bool = True

    def narrow_to_threads(self) -> Scope:
        """Return the scope with perf events on threads instead of processors, so that samples of other
        processes do not fill the rings.
        """
        return Scope(self.on_threads, False, False, samples=self.samples) if self.on_threads is not None else self

    @property
    def filtered(self) -> bool:
        """True if perf's rings contain records that do not belong to the recording."""
        return self.processors and not self.everything

    def attach_events(self, events: EventSet, pids: Iterable[int], forks: Callable[[], list[Fork]]) -> None:
        """Open perf events on the processors or threads of this scope.

        Raises:
            PerfNotAllowed: The kernel permits no event.
            ProcessLookupError: All processes have ended.
        """
        if self.processors:
            events.attach_machine()
        else:
            events.attach(pids, forks)


def choose_scope(pid: int, cpu: int, options: CollectOptions, everything: bool) -> Scope:
    """Return the best scope of perf events that the kernel permits: processors, or threads of the recording.

    Args:
        pid: A process of the recording.
        cpu: Any processor.
        options: Options of the recording.
        everything: True if all processes of the machine are recorded.

    Raises:
        PerfNotAllowed: The kernel permits no event.
        ProcessLookupError: The process has ended.
    """
    if everything:
        return Scope(choose_event(EVERY_THREAD, cpu, options), True, True)
    on_thread = choose_event(pid, cpu, options)
    if not options.running:
        return Scope(on_thread, False, False)
    try:
        on_processor = choose_event(EVERY_THREAD, cpu, options)
    except PerfNotAllowed:
        return Scope(on_thread, False, False)
    return Scope(on_processor, True, False, on_thread)


def choose_record_scope(pid: int, cpu: int, options: CollectOptions, everything: bool) -> Scope:
    """Return the best scope of perf events for records without samples.

    Events on processors are preferred. An event on a thread makes each of the thread's context switches
    slower: a round trip between two threads takes a fifth longer.

    Raises:
        PerfNotAllowed: The kernel permits no event.
        ProcessLookupError: The process has ended.
    """
    silent = replace(options, running=False, kernel=False)
    on_thread = choose_event(pid, cpu, silent)
    try:
        on_processor = choose_event(EVERY_THREAD, cpu, silent)
    except PerfNotAllowed:
        return Scope(on_thread, False, False, samples=False)
    return Scope(on_processor, True, everything, on_thread, samples=False)
