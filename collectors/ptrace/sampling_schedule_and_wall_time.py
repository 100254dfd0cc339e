"""The times at which stops sample threads and batches are yielded, and the wall-clock time that samples stand
for.

On a busy machine most sampling times are missed. So samples are not counted: the samples of a thread divide
its time, which is that of the clock. The kernel reports how much of that time the thread ran or waited for a
processor (schedstat); in the rest it slept. A thread that is still in the sleep of its last sample gets a row
without a new sample.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from pyprof.collector_control import FlushProtocol
from pyprof.collectors.base import NOBODY
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.linux.sampled_arch import WIDE
from pyprof.collectors.ptrace.sampled_process import TracedProcess
from pyprof.collectors.ptrace.sampled_thread import Thread
from pyprof.collectors.sampling_clock import SamplingClock
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.marker_frames import NOT_ONE_BY_ONE, Blocked
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.thread_identity import ThreadKey
from pyprof.options import HOLD, CollectOptions

_SLEEP_NS = 20_000_000
_PENDING_SLEEP_NS = 300_000  # another thread of the profiler may have received the SIGCHLD that reports it
_FIRST_FLUSH_NS = 20_000_000
_WALK_NS = 100_000_000
"""Approximate maximum time in ns for unwinding a batch. The end of a recording waits until the last batch is
unwound.
"""
REST_NS = 50_000
"""Minimum sleep in ns before a sampling time, so that other threads run on the sampler's processor.

If the sampler worked until a sampling time, no other thread would run on its processor at that time. And a
sampler that waits for a processor misses sampling times. So most of the remaining samples would show nothing
on that processor.
"""


class Scheduler:
    """The schedule of sampling times and batches of the ptrace collector.

    Attributes:
        stopping: True if sampling has ended.
        ticks: Number of sampling times at which samples were taken.
        ticking_ns: Length of the time over which sampling times were planned, in nanoseconds.
        visits: Number of processors to which the sampler is pinned one after the other, once each in a sampling period;
            1 if the sampler may run anywhere.
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
        # the sampling of sleeping threads waits for results of the unwinding of earlier batches
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
        """Give each sampling period one sampling time for each of this number of processors, to which the
        sampler is pinned in turn.
        """
        self._missed += self.clock.skipped / self.visits
        self.visits = processors
        self._start_clock()

    def take_future_times(self, most_ns: int) -> list[tuple[int, int]]:
        """Return the sampling times until the next batch is due, but only those within most_ns nanoseconds.

        Returns:
            List of (sampling time, time after which it is missed) in monotonic ns. It is empty if an overhead
                limit or a stride leaves sampling times out.
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
        """Count those sampling times of take_future_times() that are over.

        Args:
            slots: Number of sampling times that are over.
            used: Number of them at which samples were taken.
            shift_ns: Delay of the following sampling times (SamplingClock.shift_ns).
        """
        if slots:
            self.clock.advance(slots, used, shift_ns)
            self._due_ns = None

    def _due(self, now: int) -> int:
        """Return the monotonic time in nanoseconds at which the next sample is due."""
        if self._due_ns is None:
            self._due_ns = self.clock.next_due(now + REST_NS)
        return self._due_ns

    def wait(self, look_after: Callable[[int], bool]) -> bool:
        """Sleep until a sampling time. Return False if a flush or an empty batch is due first, or if sampling
        stops.

        Args:
            look_after: Function that handles threads which have not stopped yet, for at most the given
                nanoseconds. It returns False if there are none.
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
        """Count rounds of samples, that is, sampling times at which all threads were checked."""
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
        """True if the samples so far must be yielded as a batch. The first batch is due after the first sampling time,
        so that the sizes of stack copies are learned early.
        """
        now = time.monotonic_ns()
        return now - self._flushed_ns >= self._flush_every_ns or now >= self.handover.next_ns

    @property
    def is_sign_due(self) -> bool:
        """True if an empty batch must be yielded now, so that the consumer sees that the collector is alive."""
        return time.monotonic_ns() - self._alive_ns >= self._soon_ns

    def note_flush(self, samples: bool) -> None:
        """Note that a batch was yielded, and double the interval to the next one.

        The interval does not grow after an empty batch. It is limited so that unwinding a batch takes little
        time.

        Args:
            samples: True if the batch has samples.
        """
        self._flushed_ns = self._alive_ns = time.monotonic_ns()
        if samples:
            self._flush_every_ns = min(max(2 * self._flush_every_ns, _FIRST_FLUSH_NS), self._walkable_ns)

    def note_empty_batch(self) -> None:
        """Store the time at which an empty batch was yielded, which shows that the collector still runs."""
        self._alive_ns = time.monotonic_ns()

    def note_walk(self, sampled_ns: int, took_ns: int) -> None:
        """Limit the length of later batches if unwinding a batch took long.

        Args:
            sampled_ns: Time between the first and the last sample of the batch.
            took_ns: Time that unwinding the batch took.
        """
        if sampled_ns > 0 and took_ns > 0:
            self._walkable_ns = min(max(sampled_ns * _WALK_NS // took_ns, self._soon_ns), self._most_ns)
            self._flush_every_ns = min(self._flush_every_ns, self._walkable_ns)

    def restart_waits(self) -> None:
        """Make the next batches short again, as at the beginning of the recording."""
        self._flush_every_ns = min(self._flush_every_ns, _FIRST_FLUSH_NS)

    def limit_wait(self) -> None:
        """Make the current samples be yielded after flush_s at the latest, because their walks will show what
        to copy from now on.
        """
        self._flush_every_ns = min(self._flush_every_ns, self._soon_ns)


RUNNING, SLEEPING = 0, 1
_KERNEL_STACKS = ((), (Blocked(WIDE.name, "S", NOT_ONE_BY_ONE),))
"""Kernel stacks of rows without a stack, by the state of the thread (RUNNING or SLEEPING)."""


@dataclass(slots=True)
class _ThreadTime:
    """The wall-clock time of one thread that was already given to samples.

    Attributes:
        upto_ns: End of that time.
        base_ns: Time that the thread had run or waited for a processor when it began.
        ran_ns: Part of that time in which the thread ran or waited for a processor.
    """

    upto_ns: int
    base_ns: int
    ran_ns: int


class _Row(NamedTuple):
    """A span of time that a thread has spent in one state (RUNNING or SLEEPING) and for which there is no new
    sample.
    """

    key: ThreadKey
    kind: SampleKind
    state: int
    since_ns: int
    ns: int


class WallTimes:
    """The division of the wall-clock time of a recording's threads among their samples.

    Args:
        by_pid: The sampled processes by pid.
        options: Options of the recording.
    """

    def __init__(self, by_pid: Mapping[int, TracedProcess], options: CollectOptions) -> None:
        self._by_pid = by_pid
        self._has_running = options.running
        self._period_ns = round(1e9 / options.rate_hz)
        self._handover: FlushProtocol = options.handover
        self._began_ns = 0
        self._times: dict[ThreadKey, _ThreadTime] = {}
        self._base_ns: dict[int, int] = {}

    def start(self) -> None:
        """Store how long each existing thread has run so far, because time before this moment is not accounted."""
        self._began_ns = self._handover.given_ns or time.monotonic_ns()
        for target in self._by_pid.values():
            with suppress(OSError):
                for tid in target.directory.threads():
                    with suppress(OSError):
                        self._base_ns[tid] = _running_ns(target.directory.read(f"task/{tid}/schedstat"))

    def complete(self, batches: list[SampleBatch], until_ns: int) -> Iterator[SampleBatch]:
        """Yield batches with the time that each sample stands for, and rows for time without a sample.

        All time up to until_ns is given to rows of this call, because a window may end there.

        Args:
            batches: All samples since the last call until until_ns.
            until_ns: End of the time to account.
        """
        lanes = _Lanes(batches)
        rows: list[_Row] = []
        threads = {
            ThreadKey(pid, thread.tid, thread.started): thread
            for pid, target in self._by_pid.items()
            for thread in target.list_chosen()
            if not thread.ended and (thread.has_name or not thread.no_user_stack)
        }
        for key in threads.keys() | lanes.of.keys():
            stat = _schedstat(threads[key]) if key in threads else b""
            if not stat and key not in lanes.of:
                continue
            own = self._thread_time(key, until_ns, stat)
            time_ns = self._account(own, until_ns if stat else min(lanes.last_ns(key), until_ns), stat)
            sleeps_on = bool(stat) and threads[key].has_name and threads[key].slept == stat
            self._fold_short(time_ns, lanes.has(key, RUNNING), lanes.has(key, SLEEPING) or sleeps_on)
            for state in (RUNNING, SLEEPING):
                if time_ns[state] and not lanes.distribute(key, state, time_ns[state]):
                    kind = SampleKind.UNCHANGED if state == SLEEPING and sleeps_on else SampleKind.UNSEEN
                    rows.append(_Row(key, kind, state, own.upto_ns - time_ns[state], time_ns[state]))
        for key in self._times.keys() - threads.keys():
            del self._times[key]
        yield from lanes.batches()
        if rows:
            yield _stackless(rows)

    def _thread_time(self, key: ThreadKey, until_ns: int, stat: bytes) -> _ThreadTime:
        """Return the account of a thread, which says up to when its wall-clock time was given to samples. It
        is created if the thread has none.

        Args:
            key: The thread.
            until_ns: End of the time that is being accounted.
            stat: Text of /proc/TID/schedstat, empty if the thread has ended.
        """
        own = self._times.get(key)
        if own is None:
            base_ns = self._base_ns.pop(key.tid, None)
            if base_ns is not None:
                since_ns = self._began_ns
            else:
                since_ns = max(key.started, self._began_ns)
                base_ns = _running_ns(stat) if stat and key.started < self._began_ns else 0
            own = self._times[key] = _ThreadTime(min(since_ns, until_ns), base_ns, 0)
        return own

    def _account(self, own: _ThreadTime, end_ns: int, stat: bytes) -> list[int]:
        """Account the time of a thread up to end_ns. Return the nanoseconds that it spent in each state
        (RUNNING, SLEEPING).
        """
        passed_ns = max(end_ns - own.upto_ns, 0)
        ran_ns = _running_ns(stat) - own.base_ns - own.ran_ns if stat else passed_ns
        some_ns = min(max(ran_ns, 0), passed_ns)
        own.upto_ns += passed_ns
        own.ran_ns += some_ns
        return [some_ns if self._has_running else 0, passed_ns - some_ns]

    def _fold_short(self, time_ns: list[int], *has_stack: bool) -> None:
        """Move time in a state without a sample to the thread's other state, if it is shorter than a sampling
        period and the other state has a sample.

        Args:
            time_ns: Nanoseconds in each state (RUNNING, SLEEPING), which are changed.
            has_stack: True for each state that has a sample.
        """
        for state, other in ((RUNNING, SLEEPING), (SLEEPING, RUNNING)):
            if has_stack[other] and not has_stack[state] and time_ns[state] < self._period_ns:
                time_ns[other] += time_ns[state]
                time_ns[state] = 0


class _Lanes:
    """An index of the samples in some batches by thread and state (RUNNING or SLEEPING)."""

    def __init__(self, batches: list[SampleBatch]) -> None:
        self._batches = batches
        self._length_ns = [np.zeros(len(batch), np.int64) for batch in batches]
        self.of: defaultdict[ThreadKey, tuple[list[tuple[int, int]], list[tuple[int, int]]]]
        self.of = defaultdict(lambda: ([], []))
        for number, batch in enumerate(batches):
            started = np.zeros(len(batch), np.int64) if batch.started is None else batch.started
            sleeps = batch.kind != SampleKind.STOPPED
            if batch.kernel_stack is not None:  # a sleeping thread was stopped
                sleeps |= batch.kernel_stack > 0
            columns = (batch.pid.tolist(), batch.tid.tolist(), started.tolist(), sleeps.tolist())
            for lane, (pid, tid, start, state) in enumerate(zip(*columns, strict=True)):
                self.of[ThreadKey(pid, tid, start)][state].append((number, lane))

    def last_ns(self, key: ThreadKey) -> int:
        """Return the time of a thread's last sample in the batches."""
        return max(int(self._batches[number].time_ns[lane]) for lanes in self.of[key] for number, lane in lanes)

    def has(self, key: ThreadKey, state: int) -> bool:
        """Return True if a thread has samples in the given state."""
        return key in self.of and bool(self.of[key][state])

    def distribute(self, key: ThreadKey, state: int, ns: int) -> bool:
        """Divide `ns` nanoseconds among a thread's samples in one state (RUNNING or SLEEPING). Return False
        if there are none.
        """
        if not self.has(key, state):
            return False
        lanes = self.of[key][state]
        upto = np.cumsum([int(self._batches[number].weight[lane]) for number, lane in lanes])
        shares = np.diff(upto * ns // int(upto[-1]), prepend=0).tolist()
        for (number, lane), share in zip(lanes, shares, strict=True):
            self._length_ns[number][lane] += share
        return True

    def batches(self) -> Iterator[SampleBatch]:
        for batch, length_ns in zip(self._batches, self._length_ns, strict=True):
            yield replace(batch, length_ns=length_ns)


def _stackless(rows: list[_Row]) -> SampleBatch:
    """Return a batch of rows for time without samples: they have no stack and no registers."""
    keys, kinds, states, since, lengths = zip(*rows, strict=True)
    pid, tid, started = (np.array(column, np.int64) for column in zip(*keys, strict=True))
    kind = np.array(kinds, np.uint8)
    inside = np.where(kind == SampleKind.UNSEEN, states, 0).astype(np.int32)
    batch = build_stackless_batch(WIDE, NOBODY, kind, np.array(since, np.int64), pid, tid)
    length_ns = np.array(lengths, np.int64)
    return replace(batch, started=started, length_ns=length_ns, kernel_stack=inside, kernel_stacks=_KERNEL_STACKS)


def _schedstat(thread: Thread) -> bytes:
    """Return the contents of a thread's schedstat file, empty if it has ended."""
    try:
        return thread.read_schedstat()
    except OSError:
        return b""


def _running_ns(schedstat: bytes) -> int:
    """Return the nanoseconds for which a thread has run or waited for a processor, from the text of its schedstat."""
    ran, waited = schedstat.split()[:2]
    return int(ran) + int(waited)
