"""Wall-clock time of threads, recorded by a BPF program, with the stacks of their waits.

The time that samples of running threads stand for comes from the BPF program's sums of their on-CPU time. If
a timer is due while a processor switches threads, it fires after the switch. So a thread that leaves its
processor every few microseconds has too few samples at any sampling rate. Its samples therefore share its
exact on-CPU time.

No thread is stopped. A wait has the stack with which its thread left its processor, including interpreter frames.
Threads that sleep when the recording begins are read once from outside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import NOBODY, CollectorStats, Feedback, SampleSource
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.bpf.kernel_program import WaitingThread
from pyprof.collectors.bpf.locks_and_wakers import LockWaits, WaitContext, find_lock_addresses, is_lock_wait
from pyprof.collectors.bpf.on_cpu_samples import BpfSamples
from pyprof.collectors.bpf.ring_buffer_records import I64, Flag, Records
from pyprof.collectors.bpf.samples_from_ring import BpfSource
from pyprof.collectors.bpf.wait_durations import (
    FOR_PROCESSOR,
    LATENCY_NS,
    SwitchOut,
    Waits,
    WaitTimes,
    rebuild_table,
    state_letter,
)
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.sampled_arch import NARROW, WIDE
from pyprof.collectors.perf.kernel_collector import KernelRecords, KernelSamples
from pyprof.collectors.perf.per_thread_events import FOREVER_NS
from pyprof.collectors.perf.records_to_batches import RingBatches, split_by_width
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import make_note
from pyprof.model.marker_frames import Blocked, KernelStack
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.thread_identity import ThreadKey
from pyprof.options import CollectOptions

UNKNOWN_NS = -1


class RunTimes:
    """The on-CPU time of each thread in one recording. Time of a thread between two of its samples counts for
    the later sample.
    """

    def __init__(self) -> None:
        self._accounted: dict[int, int] = {}

    def start_accounting(self, at_ns: int, threads: Iterable[WaitingThread]) -> None:
        """Start the accounting of on-CPU time at `at_ns`. Earlier time of the threads is left out."""
        self._accounted = {each.tid: _ran(each, at_ns) for each in threads}

    def distribute_run_time(
        self, tids: I64, threads: Iterable[WaitingThread], now_ns: int, room_ns: Mapping[int, int], most_ns: int
    ) -> I64:
        """Return the on-CPU time in nanoseconds that each sample stands for, or UNKNOWN_NS if its thread was unknown at
        the last call.

        A thread may have run longer than the limits allow, because the table of running times is more recent than the
        samples. The rest counts in the next call.

        Args:
            tids: Threads of the samples (n,), which ran until now_ns.
            threads: The BPF program's table of threads with their on-CPU times.
            now_ns: Time of the samples.
            room_ns: Maximum time that each thread can have run since the last call, by tid.
            most_ns: The same limit for all threads that room_ns lacks.
        """
        length = np.full(len(tids), UNKNOWN_NS, np.int64)
        lanes: dict[int, list[int]] = {}
        for lane, tid in enumerate(tids.tolist()):
            lanes.setdefault(tid, []).append(lane)
        accounted = {}
        for each in threads:
            ran, before = _ran(each, now_ns), self._accounted.get(each.tid)
            own = lanes.get(each.tid)
            if before is None or before > ran:  # the tid belongs to another thread now
                before = ran
            elif own:
                some = min(ran - before, room_ns.get(each.tid, most_ns))
                length[own] = max(some // len(own), 1)
                before += some
            accounted[each.tid] = before
        self._accounted = accounted
        return length


def _ran(thread: WaitingThread, now_ns: int) -> int:
    return thread.run_ns + (max(now_ns - thread.on_ns, 0) if thread.on_ns else 0)


_SLEEPER_ROUNDS = 4
"""Number of times that the stacks of sleeping threads are read, because the first reads do not know how much of a stack
is needed.
"""
_MAX_SLEEPER_BYTES = 64 << 20
"""Maximum number of stack bytes of sleeping threads that are read at once."""
_LAST_ROUND_NS = 300_000_000
"""Maximum time to read sleeping threads at the end of a recording, in nanoseconds, if none were read before."""

_HELD_NS = 100_000_000

LaneNumbers = npt.NDArray[np.intp]


class Sleepers:
    """The threads that sleep when a recording of waits begins. Another collector reads their stacks in a few
    rounds, without the BPF program.

    Attributes:
        outside: The collector that reads the stacks, None if no thread is left to read.
    """

    def __init__(self, from_outside: Callable[[list[int]], SampleSource]) -> None:
        """Create an empty set of sleeping threads.

        Args:
            from_outside: Function that opens the collector which reads the sleeping threads of some
                processes. Its errors are passed on.
        """
        self.outside: SampleSource | None = None
        self._from_outside = from_outside
        self._batches: Iterator[SampleBatch] = iter(())
        self._rounds = 0
        self._unread_pids: list[int] = []
        self._met: dict[ThreadKey, ThreadInfo] = {}

    def add_processes(self, pids: Iterable[int], alive: Container[int], is_needed: bool) -> None:
        """Start to read the sleeping threads of further processes, and of those that were not read completely
        before.

        Args:
            pids: The processes.
            alive: Processes that have not ended.
            is_needed: True if there are threads that have not run since the recording began.
        """
        self.close()
        self._unread_pids = [pid for pid in (*self._unread_pids, *pids) if pid in alive]
        if self._unread_pids and is_needed:
            self.outside = self._from_outside(self._unread_pids)
            self._batches, self._rounds = self.outside.batches(), 0

    def read_round(self, last: bool) -> list[SampleBatch]:
        """Return samples of threads that have slept since before the recording, each thread once.

        At the end of the recording (`last`) they are read only if no round was complete before.
        """
        outside = self.outside
        if outside is None or (last and self._rounds):
            return []
        found: list[SampleBatch] = []
        size, rounds, began_ns = 0, outside.stats().ticks, time.monotonic_ns()
        for batch in self._batches:
            found.append(batch.take_samples(np.flatnonzero(batch.kind == SampleKind.BLOCKED)))
            size += len(batch.stack.data)
            if outside.stats().ticks > rounds:
                self._rounds += 1
                self._unread_pids = []
                break
            if size > _MAX_SLEEPER_BYTES or (last and time.monotonic_ns() - began_ns > _LAST_ROUND_NS):
                break
        else:
            self._rounds = _SLEEPER_ROUNDS
        if self._rounds >= _SLEEPER_ROUNDS:
            self.close()
        return found

    def threads(self) -> list[ThreadInfo]:
        """Return descriptions of the sleeping threads whose stacks were read."""
        return [*self._met.values(), *(self.outside.threads() if self.outside is not None else ())]

    def retire(self) -> None:
        """Forget threads that have ended."""
        self._met = {key: info for key, info in self._met.items() if os.path.exists(f"/proc/{key.tid}")}

    def stop(self) -> None:
        """End the present round: one over all processes of a busy machine takes seconds."""
        if (outside := self.outside) is not None:
            outside.stop()

    def close(self) -> None:
        outside, self.outside = self.outside, None
        if outside is not None:
            self._met |= {info.key: info for info in outside.threads()}
            outside.stop()
            outside.close()


class BpfWaitSamples(KernelSamples):
    """The samples of running threads and the waits that the BPF program records, in a collector that reads
    kernel records.
    """

    most_copy = BpfSamples.most_copy
    hold_s = BpfSamples.hold_s
    young_wait_ns = BpfSamples.young_wait_ns
    silent_flushes = BpfSamples.silent_flushes

    def __init__(
        self,
        records: KernelRecords,
        source: BpfSource,
        options: CollectOptions,
        before_exec: bool,
        from_outside: Callable[[list[int]], SampleSource],
    ) -> None:
        """Begin to record the waits of the processes of a recording. See BpfSamples and Sleepers for the arguments."""
        self.source = source
        self._records, self._options = records, options
        self._waits = Waits()
        self._run_times = RunTimes()
        self._surroundings = WaitContext(options, LockWaits(source.processes.find_gil_addresses))
        self.sleepers = Sleepers(from_outside)
        self._plain = BpfSamples(records, source, options, before_exec)
        records.closing.callback(self.sleepers.close)
        records.members.joined = self._join
        if not before_exec:
            self._meet(records.members.alive)

    def begin(self, at_ns: int) -> None:
        waiting = self.source.sampler.read_waiting_threads()
        self._waits.start_at(at_ns, waiting)
        self._run_times.start_accounting(at_ns, waiting)

    def longest_wait_ns(self) -> int:
        """Return the maximum time in nanoseconds between two readings of the ring buffer. Waiting time that is read too
        late would belong to the next window.
        """
        return _HELD_NS

    def is_full(self) -> bool:
        return self._plain.is_full()

    def stop(self) -> None:
        self._waits.stop_at(self._records.handover.end())
        self.sleepers.stop()

    def _join(self, pids: list[int]) -> None:
        self.source.processes.add_processes(pids)
        self._meet(pids)

    def _meet(self, pids: list[int]) -> None:
        """Begin to account the waits of newly found processes, whose threads may already sleep."""
        now = time.monotonic_ns()
        for pid in pids:
            try:
                self._waits.note_threads(procfs.list_tasks(pid), now)
            except OSError:
                continue
        self.sleepers.add_processes(pids, self._records.members.tracked.alive, self._waits.has_unreported_threads)

    def read_batches(self, until_ns: int) -> Iterator[SampleBatch]:
        source, handover = self.source, self._records.handover
        if not self._waits.has_begun:  # opened by a recording that had begun
            self.begin(handover.begun_ns or time.monotonic_ns())
        last = until_ns == FOREVER_NS
        sleepers = self.sleepers.read_round(last)
        if self._options.locks:
            sleepers = [self._take_lock_waits(batch) for batch in sleepers]
        asleep = [tid for batch in sleepers for tid in batch.tid.tolist()]
        self._plain.reopen_events()
        if last:
            source.sampler.stop_program()
        now_ns = (handover.ended_ns or time.monotonic_ns()) if last else until_ns
        waiting, least_ns = source.sampler.read_waiting_threads(), source.rates.least_ns
        samples = source.take_samples(until_ns)
        waiting = rebuild_table(waiting, source.read_later_ends(), now_ns)
        taken = self._records.take_samples(until_ns, samples, source.words)
        records = source.records
        waits = np.flatnonzero(records.flags & Flag.WAITS)
        left = SwitchOut(
            records.tid[waits].astype(np.int64), records.time_ns[waits], records.why[waits], taken.wanted[waits]
        )
        before_ns = self._waits.upto_ns
        cuts = last or handover.ends_window(until_ns)
        times = self._waits.account_until(
            left, source.ended, waiting, asleep, now_ns, least_ns, cuts=cuts or not self._options.wakers
        )
        if self._options.locks:
            self._surroundings.locks.merge_continued_waits(times, source.ended, cuts)
            times.stackless = [each for each in times.stackless if is_lock_wait(each)]
        yield from self._wakers(taken, samples.narrow)
        yield from self._without_samples(times, sleepers)
        running = np.flatnonzero(taken.wanted & (records.flags & (Flag.WAITS | Flag.WAKER) == 0))
        self._plain.count_samples(len(running))
        first, second = _lengths(records, waits, times)
        first[running] = self._run_times.distribute_run_time(
            records.tid[running].astype(np.int64), waiting, now_ns, times.room_ns, now_ns - before_ns
        )
        for length_ns, state in ((first, None), (second, FOR_PROCESSOR)):
            again = np.zeros(len(records), np.bool_)
            again[waits] = times.continues & (state is None)
            lanes = np.flatnonzero(taken.wanted & ((length_ns != 0) | again))
            if not len(lanes):
                continue
            batch = source.with_frames(taken.switched.take_samples(lanes), lanes)
            batch = replace(batch, followed=state is None, length_ns=length_ns[lanes])
            batch = _labelled(batch, records, lanes, state)
            ends = {} if state else times.ends
            batch = replace(batch, around=self._surroundings.describe_records(batch, source, ends, waits, lanes))
            for part in split_by_width(batch, np.ones(len(lanes), np.bool_), samples.narrow[lanes]):
                self._records.accounts.count_batch(part)
                yield part
        self._plain.release_samples(taken)

    def _wakers(self, taken: RingBatches, narrow: npt.NDArray[np.bool_]) -> Iterator[SampleBatch]:
        """Yield batches with the stacks of threads that woke others. Stacks of threads of unknown processes
        are left out.
        """
        those = (self.source.records.flags & Flag.WAKER != 0) & (taken.switched.space > 0)
        lanes = np.flatnonzero(those)
        if not len(lanes):
            return
        batch = self.source.with_frames(taken.switched.take_samples(lanes), lanes)
        for part in split_by_width(batch, np.ones(len(lanes), np.bool_), narrow[lanes]):
            if len(part):
                yield replace(part, reference_only=True)

    def _take_lock_waits(self, batch: SampleBatch) -> SampleBatch:
        self._surroundings.addresses |= (found := find_lock_addresses(batch))
        return batch.take_samples(np.flatnonzero(np.isin(batch.tid, list(found))))

    def _without_samples(self, times: WaitTimes, sleepers: list[SampleBatch]) -> Iterator[SampleBatch]:
        """Yield batches of waiting time without a new sample: of waits whose stack was in an earlier batch, and of
        waits without a stack.
        """
        if times.continued:
            tid, since, length, _, woken = (np.array(column, np.int64) for column in zip(*times.continued, strict=True))
            batch = replace(
                self._rows(SampleKind.UNCHANGED, tid, since, length),
                kernel_stack=woken.astype(np.int32),
                kernel_stacks=((), (Blocked(WIDE.name, FOR_PROCESSOR),)),
            )
            batch = replace(batch, around=self._surroundings.describe_times(batch, times.continued, self.source.ended))
            yield batch.take_samples(self._wanted(batch))
        if times.stackless:
            rows = [(each.tid, each.since_ns, each.ns) for each in times.stackless]
            tid, since, length = (np.array(column, np.int64) for column in zip(*rows, strict=True))
            batch = self._rows(SampleKind.UNSEEN, tid, since, length)
            kernel_stacks: dict[KernelStack, int] = {(): 0}
            inside = [_number(kernel_stacks, WIDE.name, each.state, each.call) for each in times.stackless]
            batch = replace(
                batch, kernel_stack=np.array(inside, np.int32), kernel_stacks=tuple(kernel_stacks), followed=False
            )
            batch = replace(batch, around=self._surroundings.describe_times(batch, times.stackless, self.source.ended))
            yield batch.take_samples(self._wanted(batch))
        for batch in sleepers:
            if len(batch):
                yield self._of_those_asleep(batch, times)

    def _of_those_asleep(self, batch: SampleBatch, times: WaitTimes) -> SampleBatch:
        """Return the samples of threads that have slept since before the recording began, each with the time
        in ns that its thread has slept since the last batch.
        """
        kept = [lane for lane, tid in enumerate(batch.tid.tolist()) if tid in times.asleep_ns]
        length = np.array([times.asleep_ns[int(batch.tid[lane])] for lane in kept], np.int64)
        some = batch.take_samples(np.array(kept, np.int64))
        around = self._surroundings.describe_sleepers(some)
        return replace(some, length_ns=length, stopped=False, source_id=self._records.source_id, around=around)

    def _rows(self, kind: SampleKind, tid: I64, since_ns: I64, length_ns: I64) -> SampleBatch:
        tracked = self._records.members.tracked
        pid, started = tracked.names.find_pids(tid, since_ns), tracked.lives.started(tid, since_ns)
        batch = build_stackless_batch(WIDE, NOBODY, np.full(len(tid), kind, np.uint8), since_ns, pid, tid)
        return replace(batch, stopped=False, length_ns=length_ns, started=started)

    def _wanted(self, batch: SampleBatch) -> LaneNumbers:
        maker = self._records.maker
        wanted = maker.mask_shown(batch.tid, batch.time_ns) & maker.mask_recorded(batch.pid)
        if maker.elsewhere is not None:
            wanted &= ~maker.elsewhere(batch.pid, batch.tid, batch.time_ns)
        return np.flatnonzero(wanted)

    def learn(self, feedback: Feedback) -> None:
        if not len(feedback.batch) or feedback.batch.kind[0] != SampleKind.BLOCKED:
            self._plain.learn(feedback)
        elif self.sleepers.outside is not None:
            self.sleepers.outside.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        return self.sleepers.threads()

    def retire(self) -> None:
        self._plain.retire()
        self.sleepers.retire()

    def stats(self) -> CollectorStats:
        found = self._plain.stats()
        note = make_note("waits_by_program", least_ms=self.source.rates.most_ns / 1e6)
        ticking_ns = found.ticking_ns if self._options.running else 0
        return replace(found, ticking_ns=ticking_ns, notes=(*found.notes, note))


def _lengths(records: Records, waits: LaneNumbers, times: WaitTimes) -> tuple[I64, I64]:
    """Return two columns of shape (n,) in nanoseconds for n BPF records, of which `waits` are the indices of
    waits.

    The first column is the time that each record stands for, -1 for a sample of a running thread. The second is the
    time that the thread waited for a processor after its wakeup.
    """
    first, second = np.where(records.flags & Flag.WAKER, 0, -1), np.zeros(len(records), np.int64)
    apart = (records.why[waits] != 0) & (times.runnable_ns >= LATENCY_NS)
    second[waits[apart]] = times.runnable_ns[apart]
    first[waits] = times.blocked_ns + np.where(apart, 0, times.runnable_ns)
    return first, second


def _labelled(batch: SampleBatch, records: Records, lanes: LaneNumbers, state: str | None) -> SampleBatch:
    """Add a frame that says what the thread waits for to the kernel frames of each sample at a wait. `state`
    replaces the task state of all samples.
    """
    flags, why, call = records.flags[lanes], records.why[lanes], records.call[lanes]
    stacks = {frames: place for place, frames in enumerate(batch.kernel_stacks)}
    inside = np.zeros(len(lanes), np.int32) if batch.kernel_stack is None else batch.kernel_stack.copy()
    for n in np.flatnonzero(flags & Flag.WAITS).tolist():
        own = state or state_letter(int(why[n]))
        arch = NARROW if flags[n] & Flag.NARROW else WIDE
        frames = batch.kernel_stacks[int(inside[n])]
        inside[n] = _number(stacks, arch.name, own, -1 if own == FOR_PROCESSOR else int(call[n]), frames)
    return replace(batch, kernel_stack=inside, kernel_stacks=tuple(stacks))


def _number(stacks: dict[KernelStack, int], arch: str, state: str, call: int, frames: KernelStack = ()) -> int:
    return stacks.setdefault((Blocked(arch, state, call), *frames), len(stacks))
