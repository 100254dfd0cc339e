"""Perf events on threads: one for each thread and processor, whose samples go to that processor's ring
buffer.

The kernel permits a ring for an event that new threads inherit only if the event is bound to a processor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pyprof.collectors.linux import libc, procfs
from pyprof.collectors.perf.event_attributes import Event, EventKind, Periods, SwitchEvent, counted_ns, refusal
from pyprof.collectors.perf.random_sampling import RandomRates
from pyprof.collectors.perf.ring_buffer_records import (
    EXIT,
    FORK,
    LOST,
    OtherRecord,
    Rings,
    list_online_cpus,
    parse_task,
)
from pyprof.lazy_dataclasses import dataclass, field, replace

if TYPE_CHECKING:
    from pyprof.collectors.perf.cpu_wide_events import ProcessorEvents, Silent


from pyprof.collectors.perf.ring_buffer_records import Scan, scan_ring
from pyprof.problem_counters import Diagnostics

_ENABLE, _DISABLE, _SET_OUTPUT, _PERIOD = 0x2400, 0x2401, 0x2405, 0x4008_2404
_ROUNDS = 20
_FORK_SHOWS_S = 0.001

EVERY_THREAD = -1

Fork = tuple[int, int, int]
"""The start of a thread, from perf's records: (time, tid, tid of the parent thread)."""


FOREVER_NS = 2**62


@dataclass(slots=True, eq=False)
class _Events:
    """The perf events that were opened on one thread. Closing them also ends the events that other threads
    inherited from it.

    Attributes:
        fds: Descriptors by processor.
        threads: Number of living threads that have these events, including those that inherited them.
        certain: False if the record of such a thread's start may have been lost.
    """

    fds: dict[int, int]
    threads: int = 1
    certain: bool = True


@dataclass
class EventSet:
    """The perf events of a recording that copy the same number of stack bytes.

    Attributes:
        since_ns: Monotonic time from which on a thread's children inherit these events, by tid.
    """

    event: EventKind
    rate_hz: float
    stack_size: int
    rings: Rings
    rates: RandomRates = field(init=False)
    since_ns: dict[int, int] = field(default_factory=dict)
    _own: dict[int, _Events] = field(default_factory=dict)
    _of: dict[int, _Events] = field(default_factory=dict)
    _every: set[_Events] = field(default_factory=set)
    _ended_ns: int = 0
    _machine: ProcessorEvents | None = None

    def __post_init__(self) -> None:
        self.rates = RandomRates(self.rate_hz)

    def attach(self, pids: Iterable[int], forks: Callable[[], list[Fork]]) -> None:
        """Open perf events on all threads of processes.

        A thread that starts meanwhile inherits its parent's events if they existed before the thread.
        Otherwise it gets its own events. The fork records tell which is the case.

        Args:
            pids: The processes.
            forks: Function that returns all forks that perf_events have reported so far.

        Raises:
            PerfNotAllowed: The kernel permits no event.
            ProcessLookupError: All threads have ended.
        """
        pids = list(pids)
        for turn in range(_ROUNDS):
            fresh = [tid for pid in pids for tid in _tasks(pid) if tid not in self.since_ns]
            if turn and fresh:
                time.sleep(_FORK_SHOWS_S)
                self._inherit(forks())
            for tid in fresh:
                if tid not in self.since_ns:
                    self._open(tid)
            if not fresh:
                break
        if not self.since_ns:
            raise ProcessLookupError(*pids[:1])

    def attach_machine(self) -> None:
        """Open events on every thread of the machine, including later ones.

        Raises:
            PerfNotAllowed: The kernel permits no event.
        """
        from pyprof.collectors.perf.cpu_wide_events import ProcessorEvents

        self._machine = ProcessorEvents([*self.rings.owners], self._open_on)
        mine = self._own[EVERY_THREAD] = _Events(self._machine.fds)
        self._every.add(mine)

    def _open_on(self, cpu: int) -> int:
        """Open a perf event on all threads of a processor and return its descriptor, negative if the processor is
        offline.
        """
        owner = self.rings.ring_on(cpu)
        if owner < 0:
            return owner
        rate_hz = self.rates.draw()
        fd = libc.perf_event_open(self.event.attr(rate_hz, self.stack_size, EVERY_THREAD), EVERY_THREAD, cpu)
        if fd >= 0:
            fcntl.ioctl(fd, _SET_OUTPUT, owner)
            self.rates.begin(fd, rate_hz)
        elif -fd != errno.ENODEV:
            raise refusal(-fd, EVERY_THREAD)
        return fd

    def revive(self) -> Silent:
        """Open perf events on processors that came online, if the events are on the whole machine.

        Returns:
            The time in ns for which a processor had no event, by processor with a new event.
        """
        return self._machine.reopen_events(list_online_cpus) if self._machine is not None else {}

    def take_over(self, old: EventSet) -> None:
        """Copy from a replaced set of events which processors had no counting event, so that revive() reports them."""
        if self._machine is not None and old._machine is not None:
            self._machine.take_over(old._machine)

    def _inherit(self, forks: list[Fork]) -> None:
        for at, tid, parent in sorted(forks):
            if tid not in self.since_ns and self.since_ns.get(parent, at + 1) <= at:
                self.since_ns[tid] = at
                self._born(at, tid, parent)

    def update(self, others: Iterable[OtherRecord]) -> None:
        """Follow the starts and ends of threads, and close perf events that no living thread has any more.

        Args:
            others: All records of thread starts and ends up to some time.
        """
        if not self._of:
            return
        tasks = []
        for record in others:
            if record.kind == LOST:  # perhaps a thread's start
                for events in self._every:
                    events.certain = False
            elif record.kind in (FORK, EXIT) and (ids := parse_task(record.body)) is not None:
                tasks.append((record.time_ns, record.kind == EXIT, ids))
        for at, ended, (pid, parent, tid, parents_tid) in sorted(tasks):
            if ended:
                self._ended(at, tid)
            elif self.event.children or pid == parent:
                self._born(at, tid, parents_tid)

    def _born(self, at: int, tid: int, parent: int) -> None:
        events = self._of.get(parent)
        if events is not None and tid not in self._of and self.since_ns.get(parent, at) <= at:
            self._of[tid] = events
            events.threads += 1

    def _ended(self, at: int, tid: int) -> None:
        if self.since_ns.get(tid, at) > at:  # it is the end of an earlier thread with the same tid
            return
        self.since_ns.pop(tid, None)
        self._own.pop(tid, None)
        events = self._of.pop(tid, None)
        if events is not None:
            events.threads -= 1
            if not events.threads and events.certain:
                self._every.discard(events)
                self._ended_ns += sum(map(counted_ns, events.fds.values()))
                self._close(events)

    def _open(self, tid: int) -> None:
        attr = self.event.attr(self.rate_hz, self.stack_size, tid)
        mine: dict[int, int] = {}
        for cpu, owner in self.rings.owners.items():
            fd = libc.perf_event_open(attr, tid, cpu)
            if -fd == errno.ENODEV:  # the processor went offline
                continue
            if fd < 0:
                for other in mine.values():
                    os.close(other)
                if -fd == errno.ESRCH:
                    return
                raise refusal(-fd, tid)
            mine[cpu] = fd
            fcntl.ioctl(fd, _SET_OUTPUT, owner)
        self._own[tid] = self._of[tid] = _Events(mine)
        self._every.add(self._own[tid])
        self.since_ns[tid] = time.monotonic_ns()

    def counted_ns(self) -> int:
        """Return the total time in nanoseconds for which perf events of this set have counted, including inherited and
        closed ones.
        """
        return self._ended_ns + sum(counted_ns(fd) for events in self._every for fd in events.fds.values())

    def owns(self, tid: int) -> bool:
        """Return True if perf events were opened for this thread itself. Return False if it inherited its
        events from another thread.
        """
        return tid in self._own

    @property
    def inherited(self) -> bool:
        """True if there are threads with inherited perf events."""
        return len(self._of) > len(self._own)

    def change_rates(self, samples: Mapping[int, int]) -> None:
        """Give perf events on processors new random rates, if they have had their rates long enough.

        Args:
            samples: Number of samples since the last call, by processor.
        """
        assert isinstance(self.event, Event)
        fds = self._own[EVERY_THREAD].fds if EVERY_THREAD in self._own else {}
        for cpu, count in samples.items():
            if (fd := fds.get(cpu, -1)) >= 0 and self.rates.is_over(fd, count):
                period = struct.pack("=Q", self.event.period(self.rates.change(fd)))
                with contextlib.suppress(OSError):  # the processor goes offline
                    fcntl.ioctl(fd, _PERIOD, period)

    def retune(self, periods: Periods) -> None:
        """Set new periods of context-switch events: for threads that have their own events, and for those
        opened later.
        """
        assert isinstance(self.event, SwitchEvent)
        before, self.event = self.event.periods, replace(self.event, periods=periods)
        for tid, events in self._own.items():
            if (period := periods.find_period(tid)) != before.find_period(tid):
                for fd in events.fds.values():
                    with contextlib.suppress(OSError):  # the thread is ending
                        fcntl.ioctl(fd, _PERIOD, struct.pack("=Q", period))

    def switch(self, tids: Iterable[int], on: bool) -> None:
        """Enable or disable the perf events of threads, including events that other threads inherited from them."""
        for events in [self._own[tid] for tid in tids if tid in self._own]:
            events.certain &= on  # starts of threads are not reported while events are off
            for fd in events.fds.values():
                with contextlib.suppress(OSError):
                    fcntl.ioctl(fd, _ENABLE if on else _DISABLE, 0)

    def close(self) -> None:
        """Close the perf events of this set, which also ends the inherited ones."""
        for events in self._every:
            self._close(events)
        self._every.clear()
        self._own.clear()
        self._of.clear()
        self._machine = None

    def _close(self, events: _Events) -> None:
        for fd in events.fds.values():
            with contextlib.suppress(OSError):  # a forked writer of an earlier window may keep it open
                fcntl.ioctl(fd, _DISABLE, 0)
            os.close(fd)
            self.rates.forget(fd)


def forks_of(others: Iterable[OtherRecord]) -> list[Fork]:
    """Return the forks among records of perf's rings, as (time, tid, parent's tid)."""
    found = ((record.time_ns, parse_task(record.body)) for record in others if record.kind == FORK)
    return [(at, ids[2], ids[3]) for at, ids in found if ids is not None]


def _tasks(pid: int) -> list[int]:
    try:
        return procfs.list_tasks(pid)
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class RingReader:
    """A reader of all perf ring buffers. The memory of records that were read stays in use until their Scan
    releases it.

    Attributes:
        rings: The rings.
        diagnostics: The recording's counters of problems, here of broken rings.
        recorded_pids: Mapping with the pids of the recording, or None if records of other processes are
            wanted too.
    """

    rings: Rings
    diagnostics: Diagnostics
    recorded_pids: Mapping[int, object] | None = None

    def scan_rings(self, until_ns: int) -> Scan:
        return self._scan(
            Scan(recorded_pids=None if self.recorded_pids is None else self.recorded_pids.keys()), until_ns
        )

    def _scan(self, found: Scan, until_ns: int) -> Scan:
        for ring in self.rings.rings.values():
            scan_ring(ring, self.rings.words, until_ns, found)
        found.add_descendants(self.rings.words)
        found.others.sort(key=lambda record: record.time_ns)
        if found.broken:
            self.diagnostics.count("ring_record_invalid", found.broken)
        return found

    def read_forks(self) -> list[Fork]:
        """Return all forks whose records are in perf's rings, including those of other processes. The records
        remain in the rings.
        """
        return forks_of(self._scan(Scan(), FOREVER_NS).others)
