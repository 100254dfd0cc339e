"""Context switches of threads by perf_events: their records in bulk, stacks at the switch, and a duty cycle.

Consecutive records of equal size are read at once as columns, however many they are (linux/perf_event.h).
PERF_RECORD_SWITCH is a header and the words (pid, tid), time, (cpu, 0). The variant for the whole machine
(SWITCH_CPU_WIDE) has one more word after the header. The header states the direction, and whether the thread
was preempted.

These events have separate rings. PERF_RECORD_SWITCH gives the time of each switch, even if time in the kernel may not
be sampled. The context-switch event gives a sample with user registers and stack. Its period depends on the threads
(perf/event_attributes.py). A thread that switches thousands of times a second is sampled by duty cycle: its events are
on for a part of the time only.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Iterable

import numpy as np

from pyprof.collectors.base import Feedback
from pyprof.collectors.context_switch_protocol import (
    BLOCKED,
    ENDED,
    IN,
    MIN_ON_NS,
    PREEMPTED,
    Gap,
    ThreadEvents,
    count_covered_ns,
)
from pyprof.collectors.linux import libc, procfs
from pyprof.collectors.perf.event_attributes import (
    MOST_STACK,
    PerfNotAllowed,
    Periods,
    SwitchEvent,
    Tuning,
    choose_thread_periods,
)
from pyprof.collectors.perf.per_thread_events import EVERY_THREAD, FOREVER_NS, EventSet, Fork
from pyprof.collectors.perf.ring_buffer_records import (
    EXIT,
    FORK,
    I64,
    LOST,
    LOST_SAMPLES,
    MIN_RING,
    SAMPLE,
    U64,
    OtherRecord,
    Ring,
    SampleRecords,
    list_online_cpus,
    open_rings,
    parse_lost,
    parse_task,
    read_samples,
)
from pyprof.collectors.perf.stack_copy_size import StackSize
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

SWITCH, SWITCH_CPU_WIDE = 14, 15
MISC_OUT, MISC_PREEMPTED = 1 << 13, 1 << 14
_TID, _TIME = -3, -2
_KIND_AND_SIZE = np.uint64(0xFFFF_0000_FFFF_FFFF)
_FIRST_LOOK = 16
_FULL = 1 << 16
"""Maximum size of a perf record in bytes."""
_FOREVER_NS = 2**62


@dataclass(slots=True)
class SwitchScan:
    """The records of context switches in all perf rings at some moment; see perf.ring_buffer_records.Scan.

    Attributes:
        ends: For each run of consecutive switch records: (index of the word after each record, record size in
            words).
        gaps: Spans of time whose records were lost.
        heard_ns: Time of the last record of each processor, by processor.
    """

    samples: list[I64] = field(default_factory=list)
    others: list[OtherRecord] = field(default_factory=list)
    tails: list[tuple[Ring, int]] = field(default_factory=list)
    ends: list[tuple[I64, int]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    heard_ns: dict[int, int] = field(default_factory=dict)
    broken: int = 0

    def release_records(self) -> None:
        for ring, tail in self.tails:
            ring.release_records(tail)

    def read_switches(self, words: U64) -> tuple[I64, I64, I64, I64]:
        """Return columns (pid, tid, time_ns, kind) of all context switches."""
        if not self.ends:
            none = np.zeros(0, np.int64)
            return none, none, none, none
        end = np.concatenate([ends for ends, _ in self.ends])
        size = np.repeat([size for _, size in self.ends], [len(ends) for ends, _ in self.ends])
        misc = words[end - size].view(np.int64) >> 32
        kind = np.where(misc & MISC_OUT, np.where(misc & MISC_PREEMPTED, PREEMPTED, BLOCKED), IN)
        ids = words[end + _TID]
        pid, tid = (ids & np.uint64(0xFFFF_FFFF)).astype(np.int64), (ids >> np.uint64(32)).astype(np.int64)
        return pid, tid, words[end + _TIME].view(np.int64), kind


def scan_ring(ring: Ring, words: U64, until_ns: int, into: SwitchScan, heard_ns: int) -> int:
    """Add the context-switch records of a perf ring up to until_ns to `into`.

    Args:
        heard_ns: Time of the last record that was read from this ring before.

    Returns:
        Time of the last record.
    """
    position, head = ring.tail, ring.head
    if not 0 <= head - position <= ring.size:
        into.broken += 1
        into.tails.append((ring, head))
        return heard_ns
    while position < head:
        at = position & (ring.size - 1)
        word = ring.first + at // 8
        header = int(words[word])
        kind, size = header & 0xFFFF_FFFF, header >> 48
        if size < 32 or size & 7 or size > head - position:
            into.broken += 1
            position = head
            break
        ring.make_contiguous(at, size)
        step = size // 8
        if kind in (SWITCH, SWITCH_CPU_WIDE):
            run = _run(words, word, step, min(head - position, ring.size - at) // size)
            late = words[word + step + _TIME : word + run * step : step] > np.uint64(until_ns)
            stop = bool(late.any())
            run = int(late.argmax()) if stop else run
            if run:
                heard_ns = int(words[word + run * step + _TIME])
                into.ends.append((word + np.arange(1, run + 1, dtype=np.int64) * step, step))
            position += run * size
            if stop:
                break
            continue
        time_ns = int(words[word + (2 + 1 if kind == SAMPLE else step + _TIME)])
        if time_ns > until_ns:
            break
        if kind in (LOST, LOST_SAMPLES):
            into.gaps.append((heard_ns, time_ns))
        heard_ns = time_ns
        if kind == SAMPLE:
            into.samples.append(np.array([word], np.int64))
        else:
            body = words[word + 1 : word + step + _TID].tobytes()
            into.others.append(OtherRecord(kind, header >> 32 & 0xFFFF, time_ns, body))
        position += size
    into.tails.append((ring, position))
    if head - ring.tail > ring.size - min(_FULL, ring.size // 8):  # the next records may already be lost
        into.gaps.append((heard_ns, _FOREVER_NS))
    return heard_ns


def _run(words: U64, word: int, step: int, most: int) -> int:
    """Return the number of consecutive context-switch records of the same kind and size, from the one at `word` on; at
    least 1.
    """
    look, run = _FIRST_LOOK, 1
    first = words[word] & _KIND_AND_SIZE
    while run < most:
        upto = min(look, most)
        same = words[word + run * step : word + upto * step : step] & _KIND_AND_SIZE == first
        if not same.all():
            return run + int(same.argmin())
        run, look = upto, 4 * look
    return max(run, 1)


_FAST_HZ = 5000.0
"""Rate of context switches in Hz above which a thread is recorded only for a part of the time."""
_MAX_TURNS = 9
_FIRST_LOOK_S = 0.02


class DutyCycle:
    """The decision which threads switch so often that their context-switch events are disabled for a part of
    the time.

    If the events cover the whole machine (`everything`), they are enabled or disabled for all threads
    together.

    Attributes:
        paused: Threads whose context-switch events are disabled now.
        rests: Number of threads whose context-switch events were disabled at least once.
        rates: Switches per second by tid, from the last measurement until discard_rates().
        inherited: True if a thread that switches too often has only inherited events, which cannot be
            disabled alone.
    """

    def __init__(self, everything: bool, processors: int) -> None:
        self.paused: frozenset[int] = frozenset()
        self.rests = 0
        self.rates: dict[int, float] = {}
        self.inherited = False
        self._everything = everything
        self._processors = processors
        self._gap: Gap | None = None
        self._leaves: dict[int, int] = {}
        self._counted_ns = time.monotonic_ns()
        self._began = False
        self._rested: set[int] = set()
        self._turns = 0

    @property
    def off(self) -> frozenset[int]:
        """The threads whose context-switch events are disabled for a while, as a set that EventSet.switch() expects."""
        return frozenset({EVERY_THREAD}) if self._gap is not None else self.paused

    def take_gaps(self) -> list[Gap]:
        """Return the span of time in which the whole machine's context-switch events were disabled, as a list of at
        most one span.

        While the events are disabled, the span ends at FOREVER_NS, and the next call returns it again.
        """
        gap = self._gap
        if gap is not None and gap[1] != FOREVER_NS:
            self._gap = None
        return [gap] if gap is not None else []

    def measure_rates(self, tids: I64) -> tuple[dict[int, int], float] | None:
        """Count context switches, and return the counts when the measurement is complete.

        Args:
            tids: Thread of each switch off a processor.

        Returns:
            Number of switches by thread and the duration in seconds, or None while the measurement continues.
        """
        if self.off:
            return None
        found, counts = np.unique(tids, return_counts=True)
        for tid, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._leaves[tid] = self._leaves.get(tid, 0) + count
        now = time.monotonic_ns()
        passed_s = (now - self._counted_ns) / 1e9
        if passed_s < (MIN_ON_NS / 1e9 if self._began else _FIRST_LOOK_S):
            return None
        leaves = self._leaves
        self.rates = {tid: count / passed_s for tid, count in leaves.items()}
        self._began, self._leaves, self._counted_ns = True, {}, now
        return leaves, passed_s

    def pause_threads(self, events: EventSet) -> None:
        """Disable the context-switch events of threads that switch more often than the limit."""
        if self._everything:
            off_hz = sum(self.rates.values()) / self._processors
            if off_hz > _FAST_HZ:
                self._gap = (self._counted_ns, FOREVER_NS)
                self._switch_off(events, frozenset({EVERY_THREAD}), off_hz)
            return
        fast = [tid for tid, hz in self.rates.items() if hz > _FAST_HZ]
        own = frozenset(tid for tid in fast if events.owns(tid))
        self.inherited = len(own) < len(fast)
        if own:
            self.paused = own
            self._switch_off(events, own, max(self.rates[tid] for tid in own))

    def _switch_off(self, events: EventSet, tids: frozenset[int], most_hz: float) -> None:
        events.switch(tids, on=False)
        self.rests += len(tids - self._rested)
        self._rested |= tids
        self._turns = min(math.ceil(most_hz / _FAST_HZ), _MAX_TURNS + 1)

    def retire(self) -> None:
        """Forget ended threads whose context-switch events were disabled. Only their number stays for the report."""
        self._rested = {tid for tid in self._rested if tid == EVERY_THREAD or os.path.exists(f"/proc/{tid}")}

    def discard_rates(self) -> None:
        """Discard the measured rates of switches, because they have been used."""
        self.rates, self.inherited = {}, False

    def resume_threads(self, events: EventSet | None) -> tuple[frozenset[int], int]:
        """Enable the context-switch events of paused threads again, if they were disabled for enough calls.

        Returns:
            (threads whose events are enabled again, monotonic time from which their switches are recorded).
        """
        if self._turns:
            self._turns -= 1
        off = self.off
        if not off or self._turns or events is None:
            return frozenset(), 0
        events.switch(off, on=True)
        self._leaves, self._counted_ns = {}, time.monotonic_ns()
        if self._gap is not None:
            self._gap = (self._gap[0], self._counted_ns)
            return frozenset(), 0
        self.paused = frozenset()
        return off, self._counted_ns


_MAX_RING = 8 << 20
_MAX_RINGS = 64 << 20
_FIRST_STACK = 8 << 10
_FIRST_PERIOD = 101
_MIN_RUNS = 10
"""Number of times that a thread must have got a processor before the recording, so that its rate of switches
counts as known.
"""
_BUDGET_HZ = (2000.0, 4000.0)
_RENEW_NS, _MAX_RENEW_NS = 1_000_000_000, 64_000_000_000
_NO_THREAD = 2**31


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """The records from one reading of the rings of context-switch events.

    Attributes:
        samples: Samples of threads that left their processors.
        switches: Context switches, and ends of threads.
        pid: Process of each context switch.
        gaps: Spans of time in which records were lost or events were disabled.
        paused: Threads without records, because their events are disabled: they switch too often.
        scan: The records themselves; their memory must be released through it.
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
        stacks: True if the kernel permits samples with stacks at switches.
        cycle: The duty cycle of threads that switch very often.
        lost_ns: Length of time in nanoseconds whose records were lost.
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
        """Open context-switch events on those of the processes that have none yet.

        Raises:
            PerfNotAllowed: The kernel permits no event.
            ProcessLookupError: The processes have ended.
        """
        if self._events is None:
            pids = list(pids)
            if self.stacks and not self.everything:
                self._tuning.periods = self._measure_periods(pids)
            self._events = self._attached(pids)
        elif not self.everything:
            self._events.attach(pids, self._forks)

    def _measure_periods(self, pids: list[int]) -> Periods:
        """Measure for a moment how often the threads switch, and return the periods of context-switch events
        that fit. On a busy machine the first records may be read only after seconds.
        """
        began, before = time.monotonic(), _count_runs(pids)
        time.sleep(_FIRST_LOOK_S)
        after, passed_s = _count_runs(pids), time.monotonic() - began
        rates = {tid: (after[tid] - count) / passed_s for tid, count in before.items() if tid in after}
        found = choose_thread_periods(rates, rates, self._budget_hz)
        known = (tid for tid in rates if before[tid] >= _MIN_RUNS)
        return Periods(_FIRST_PERIOD, {tid: found.find_period(tid) for tid in known})

    @property
    def _budget_hz(self) -> float:
        """Maximum number of samples per second at context switches, of all threads together."""
        return min(max(10 * self.options.rate_hz, _BUDGET_HZ[0]), _BUDGET_HZ[1])

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
        """Monotonic time from which a thread's context switches are known, by tid."""
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
        """Return all context switches up to until_ns, with their samples. Their memory is valid until
        release_switches() is called.
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
        """Count the switches of each thread. Threads that switch too often are recorded for a part of the
        time only (DutyCycle).
        """
        measured = self.cycle.measure_rates(tids)
        if measured is not None:
            self._tuning.count_switches(*measured)
            if self._events is not None:
                self.cycle.pause_threads(self._events)

    def release_switches(self, found: SwitchReading, pids: Iterable[int]) -> tuple[frozenset[int], int]:
        """Release the ring memory after the samples at context switches were unwound.

        Args:
            found: The result of the last take_switches().
            pids: Processes that are alive.

        Returns:
            (threads whose events are enabled again, monotonic time from which their switches are recorded).
        """
        found.scan.release_records()
        if self._events is not None:
            self._events.update(found.scan.others)
        if self.cycle.rates:
            self._tune(pids)
            self.cycle.discard_rates()
        return self.cycle.resume_threads(self._events)

    def _tune(self, pids: Iterable[int]) -> None:
        """Adjust the periods and the copy sizes of context-switch events, and open separate events for threads that
        inherited theirs.
        """
        events = self._events
        if events is None:
            return
        before = self._tuning.periods
        size = self._size.choose_change() if self.stacks else 0
        better = self._tuning.choose_periods(events.owns, self._budget_hz) if self.stacks else None
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
        """Replace all context-switch events by ones that copy `size` stack bytes, and return True if the kernel permits
        that.
        """
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


def _count_runs(pids: Iterable[int]) -> dict[int, int]:
    """Return how often each thread of some processes has been given a processor so far, by tid, without
    threads that have ended.
    """
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for tid in procfs.list_tasks(pid):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
                    found[tid] = int(file.read().split()[2])
    return found


def _ring_size(cpus: int) -> int:
    size = _MAX_RING
    while size > MIN_RING and size * cpus > _MAX_RINGS:
        size //= 2
    return size
