"""Context switches of threads, and their stacks when they left their processor: events in separate rings.

PERF_RECORD_SWITCH gives the time of each switch, even if time in the kernel may not be sampled. The context-switch
event gives a sample with user registers and stack. Its period depends on the threads (perf/switch_periods.py). A thread
that switches thousands of times a second is sampled by duty cycle.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable

import numpy as np

from pyprof.collectors.base import Feedback
from pyprof.collectors.linux import libc
from pyprof.collectors.perf.attr import MOST_STACK, PerfNotAllowed, SwitchEvent
from pyprof.collectors.perf.copy_size import StackSize
from pyprof.collectors.perf.duty_cycle import DutyCycle
from pyprof.collectors.perf.event_set import EVERY_THREAD, FOREVER_NS, EventSet, Fork
from pyprof.collectors.perf.records import (
    EXIT,
    FORK,
    I64,
    LOST,
    LOST_SAMPLES,
    SampleRecords,
    parse_lost,
    parse_task,
    read_samples,
)
from pyprof.collectors.perf.ring import MIN_RING, list_online_cpus, open_rings
from pyprof.collectors.perf.switch_periods import Periods, Tuning
from pyprof.collectors.perf.switch_records import SwitchScan, scan_ring
from pyprof.collectors.switch_events import ENDED, IN, Gap, ThreadEvents, count_covered_ns
from pyprof.diagnostics import Diagnostics
from pyprof.options import CollectOptions
from pyprof.records import dataclass, field

_MAX_RING = 8 << 20
_MAX_RINGS = 64 << 20
_FIRST_STACK = 8 << 10
_FIRST_PERIOD = 101
_BUDGET_HZ = (2000.0, 4000.0)
_RENEW_NS, _MAX_RENEW_NS = 1_000_000_000, 64_000_000_000
_NO_THREAD = 2**31


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """The records that were read from the rings of context switches.

    Attributes:
        samples: Samples of threads that left their processor.
        switches: Switches, and ends of threads.
        pid: Process of each context switch.
        gaps: Times without records.
        paused: Threads without records.
        scan: The scan, which releases the memory.
    """

    samples: SampleRecords
    switches: ThreadEvents
    pid: I64
    gaps: list[Gap]
    paused: frozenset[int]
    scan: SwitchScan


@dataclass
class Switches:
    """The perf events that record context switches of threads.

    Attributes:
        source_id: Identifier of batches of its samples.
        stacks: True if samples of switches are permitted.
        cycle: Duty cycle, with the threads whose events are off.
        lost_ns: Time of which records were lost.
    """

    options: CollectOptions
    diagnostics: Diagnostics
    everything: bool
    source_id: int = 0
    stacks: bool = field(init=False)

    def __post_init__(self) -> None:
        cpus = list_online_cpus()
        self.stacks = self._may_have_stacks(cpus[0])
        self.rings = open_rings(cpus, _ring_size(len(cpus)), exactly=False, wakes=False)
        most = max(min(self.options.stack_size, MOST_STACK, self.rings.size // 8) & ~7, 8)
        self._size = StackSize(most, _FIRST_STACK)
        self._size.choose_size()
        self._tuning = Tuning(Periods(_FIRST_PERIOD))
        self._heard_ns = dict.fromkeys(self.rings.rings, time.monotonic_ns())
        self._events: EventSet | None = None
        self.cycle = DutyCycle(self.everything, len(cpus))
        self.lost_ns = 0
        self._renew_ns = 0
        self._least_ns = _RENEW_NS

    def _may_have_stacks(self, cpu: int) -> bool:
        for stacks in (True, False):
            attr = SwitchEvent(stacks, self.options.subprocesses, Periods(1)).attr(0, 1024, 0)
            fd = libc.perf_event_open(attr, EVERY_THREAD if self.everything else 0, cpu)
            if fd >= 0:
                os.close(fd)
                return stacks
            if -fd not in (errno.EACCES, errno.EPERM):
                break
        return False

    def attach_events(self, pids: Iterable[int]) -> None:
        """Open context-switch events on processes, in addition to those that already have some.

        Raises:
            PerfNotAllowed: The kernel permits no event.
            ProcessLookupError: The processes have ended.
        """
        if self._events is None:
            self._events = self._attached(pids)
        elif not self.everything:
            self._events.attach(pids, self._forks)

    def _attached(self, pids: Iterable[int]) -> EventSet:
        event = SwitchEvent(self.stacks, self.options.subprocesses, self._tuning.periods)
        events = EventSet(event, self.options.rate_hz, self._size.bytes, self.rings)
        try:
            if self.everything:
                events.attach_machine()
            else:
                events.attach(pids, self._forks)
        except BaseException:
            events.close()
            raise
        return events

    @property
    def since_ns(self) -> dict[int, int]:
        """Maps a tid to the time from which its context switches are known, for threads that already existed."""
        return self._events.since_ns if self._events is not None else {}

    @property
    def flush_s(self) -> float:
        """Maximum time between two readings of the rings of context switches, in seconds."""
        return 0.1 if self.rings.size >= _MAX_RING // 4 else 0.03

    def _scan(self, until_ns: int) -> SwitchScan:
        found = SwitchScan()
        for cpu, ring in self.rings.rings.items():
            found.heard_ns[cpu] = scan_ring(ring, self.rings.words, until_ns, found, self._heard_ns[cpu])
        if found.broken:
            self.diagnostics.count("ring_record_invalid", found.broken)
        return found

    def _forks(self) -> list[Fork]:
        found = []
        for record in self._scan(FOREVER_NS).others:
            ids = parse_task(record.body) if record.kind == FORK else None
            if ids is not None:
                found.append((record.time_ns, ids[2], ids[3]))
        return found

    def take_switches(self, until_ns: int) -> SwitchReading:
        """Return all context switches until a time, with their samples. Their memory belongs to the rings until
        release_switches().
        """
        found = self._scan(until_ns)
        self._heard_ns |= found.heard_ns
        samples, _ = read_samples(self.rings.words, found.samples, self.stacks)
        pid, tid, time_ns, kind = found.read_switches(self.rings.words)
        ends = [
            (ids[0], ids[2], r.time_ns)
            for r in found.others
            if r.kind == EXIT and (ids := parse_task(r.body)) is not None
        ]
        lost = sum(parse_lost(r.kind, r.body) for r in found.others if r.kind in (LOST, LOST_SAMPLES))
        if lost:
            self.diagnostics.count("switch_records_lost", lost)
            self.lost_ns += count_covered_ns([gap for gap in found.gaps if gap[1] != FOREVER_NS])
        paused, gaps = self.cycle.paused, found.gaps + self.cycle.take_gaps()
        self._count(tid[kind != IN])
        gone = np.array(ends, np.int64).reshape(-1, 3)
        columns = zip((pid, tid, time_ns), gone.T, strict=True)
        pid, tid, time_ns = (np.concatenate([column, further]) for column, further in columns)
        kind = np.concatenate([kind, np.full(len(gone), ENDED, np.int64)])
        # idle threads have tid 0, and ended threads have no tid any more
        some = np.flatnonzero((tid > 0) & (tid < _NO_THREAD))
        switches = ThreadEvents.make_points(tid[some], time_ns[some], kind[some])
        return SwitchReading(samples, switches, pid[some], gaps, paused, found)

    def learn(self, feedback: Feedback) -> None:
        self._size.learn(feedback)

    def _count(self, tids: I64) -> None:
        """Measure the rate of context switches of each thread. Threads above the limit are sampled by duty cycle."""
        measured = self.cycle.measure_rates(tids)
        if measured is not None:
            self._tuning.count_switches(*measured)
            if self._events is not None:
                self.cycle.pause_threads(self._events)

    def release_switches(self, found: SwitchReading, pids: Iterable[int]) -> tuple[frozenset[int], int]:
        """Release the ring memory after the samples at context switches were unwound.

        Args:
            found: The result of take_switches().
            pids: Processes that are alive.

        Returns:
            Threads whose records are on again, and from when on.
        """
        found.scan.release_records()
        if self._events is not None:
            self._events.update(found.scan.others)
        if self.cycle.rates:
            self._tune(pids)
            self.cycle.discard_rates()
        return self.cycle.resume_threads(self._events)

    def _tune(self, pids: Iterable[int]) -> None:
        """Change the periods and copy sizes of context-switch events if necessary, and open separate events for threads
        that inherited theirs.
        """
        events = self._events
        if events is None:
            return
        budget = min(max(10 * self.options.rate_hz, _BUDGET_HZ[0]), _BUDGET_HZ[1])
        before = self._tuning.periods
        size = self._size.choose_change() if self.stacks else 0
        better = self._tuning.choose_periods(events.owns, budget) if self.stacks else None
        now = time.monotonic_ns()
        again = self.cycle.inherited
        if better is not None:
            self._tuning.periods = better
            if self.everything or (events.inherited and better.default != before.default):
                again = True  # inherited events keep their period
        if (size or again) and now > self._renew_ns:
            first, self._renew_ns = not self._renew_ns, now + self._least_ns
            self._least_ns = self._least_ns if first else min(2 * self._least_ns, _MAX_RENEW_NS)
            if self._renew(size or events.stack_size, pids):
                return
        if better is not None:
            events.retune(better)

    def _renew(self, size: int, pids: Iterable[int]) -> bool:
        """Replace the context-switch events, and return True if the kernel permits that."""
        old, before = self._events, self._size.bytes
        self._size.set_size(size)
        try:
            self._events = self._attached(pids)
        except (ProcessLookupError, PerfNotAllowed):
            self._size.set_size(before)
            return False
        self._events.switch(self.cycle.off, on=False)
        if old is not None:
            old.close()
        return True

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
        self.rings.close()


def _ring_size(cpus: int) -> int:
    size = _MAX_RING
    while size > MIN_RING and size * cpus > _MAX_RINGS:
        size //= 2
    return size
