"""A collector of wall-clock time: on-CPU samples, and off-CPU intervals with a label that says what the
thread waits for.

The label of a wait comes from the sample that was taken when the thread left its processor. The sample has
user registers and kernel frames. On x86-64 the registers show that the thread is in a system call: the
`syscall` instruction leaves the return address in rcx, and rax is -ENOSYS until there is a result. The number
of the call is in the previous instruction (`mov $202,%eax; syscall`). If the code takes the number from a
register, the call is known only after the thread was read from outside in a wait with the same kernel frames.
The same applies to the thread's state. On AArch64 the code shows the call, and x8 has its number.

Kernel functions that wait uninterruptibly are listed from /proc/kallsyms. Such a wait is state D in
/proc/PID/stat (TASK_UNINTERRUPTIBLE). The list is used until a thread was read from outside in the same wait.

No thread is stopped. Switch records of the kernel report when a thread left its processor and returned. The
stack of an interval is that of the sample that the kernel took at the switch. If the kernel may not take one,
the stack is read from outside while the thread sleeps (an out-of-band sample).
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import NOBODY, CollectorStats, Feedback, SampleSource
from pyprof.collectors.batch_builder import build_stackless_batch, split_at_flushes
from pyprof.collectors.context_switch_protocol import I64, Mask, SwitchBatch, SwitchSource, ThreadEvents
from pyprof.collectors.linux.sampled_arch import HERE, IN_REGISTER, WIDE
from pyprof.collectors.offcpu.interval_attribution import (
    BY_WEIGHT,
    LEFT_OUT,
    DrainState,
    IntervalAttribution,
    OffCpuIntervals,
)
from pyprof.collectors.offcpu.interval_matching import PausedThreads
from pyprof.collectors.offcpu.lost_running_time import LostRunningTime
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.marker_frames import Blocked, KernelStack
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.options import CollectOptions

_FUNCTIONS = (
    "io_schedule", "io_schedule_timeout", "bit_wait_io", "folio_wait_bit_common", "wait_for_completion",
    "wait_for_completion_timeout", "wait_for_completion_io", "wait_for_completion_io_timeout", "__mutex_lock.*",
    "rwsem_down_read_slowpath", "rwsem_down_write_slowpath", "schedule_timeout_uninterruptible",
    "schedule_timeout_killable", "msleep", "usleep_range_state", "__down", "blk_mq_get_tag", "jbd2_log_wait_commit",
)  # fmt: skip
_LINES = re.compile(
    rb"^([0-9a-f]+) [tT] (?:%b)(?:\.[\w.]+)?\n([0-9a-f]+) " % b"|".join(name.encode() for name in _FUNCTIONS),
    re.MULTILINE,
)
_MAX_KALLSYMS_BYTES = 1 << 28


def make_state_lookup(path: str = "/proc/kallsyms") -> Callable[[tuple[int, ...]], str]:
    """Return a function that maps the kernel frames of a sleeping thread, innermost first, to the state
    letter D or S. The letter is B (blocked) if the kernel hides its addresses.
    """
    spans: list[tuple[int, int]] | None = None

    def state(chain: tuple[int, ...]) -> str:
        nonlocal spans
        if spans is None:
            spans = _read(path)
        if not spans or not chain:
            return "B"
        starts = [start for start, _ in spans]
        for pc in chain:
            at = bisect_right(starts, pc) - 1
            if at >= 0 and pc < spans[at][1]:
                return "D"
        return "S"

    return state


def _read(path: str) -> list[tuple[int, int]]:
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_KALLSYMS_BYTES)
    except OSError:
        return []
    spans = [(int(start, 16), int(end, 16)) for start, end in _LINES.findall(text)]
    return sorted((start, end) for start, end in spans if start < end)


WAITS_FOR_PROCESSOR = "P"
UNKNOWN = "B"
_WAITS = "SDTtI"

_ENOSYS = np.uint64(2**64 - 38)
_MAX_LABELS = 1 << 16


class WaitLabels:
    """The labels of waits, which say what threads wait for. `kernel` is True if the profile shows kernel
    frames, too.
    """

    def __init__(self, kernel: bool) -> None:
        self._kernel = kernel
        self._by_chain: dict[KernelStack, Blocked] = {}
        self._by_pc: dict[tuple[int, int], Blocked] = {}
        self._by_code: dict[tuple[int, int], int] = {}
        self._guess = make_state_lookup()

    def learn(self, samples: SampleBatch, out_of_band: list[tuple[int, Blocked]]) -> None:
        """Store the states and system calls that /proc reported for some waits, for later waits with the same
        kernel frames.

        Args:
            samples: Samples at context switches.
            out_of_band: (index of a sample, state and call of its thread in the same wait), read from
                outside.
        """
        if len(self._by_chain) > _MAX_LABELS:
            self._by_chain.clear()
        for lane, seen in out_of_band:
            if seen.state in _WAITS:  # otherwise it was about to run
                self._by_chain[_chain(samples, lane)] = seen

    def relabel_samples(self, out_of_band: SampleBatch) -> SampleBatch:
        """Return the out-of-band samples (read from outside while threads slept). A thread that was just
        woken gets the state in which it slept before.
        """
        if out_of_band.kernel_stack is None:
            return out_of_band
        if len(self._by_pc) > _MAX_LABELS:
            self._by_pc.clear()
        kernel_stacks = {frames: place for place, frames in enumerate(out_of_band.kernel_stacks)}
        kernel_stack = out_of_band.kernel_stack.copy()
        for lane in np.flatnonzero(out_of_band.kernel_stack).tolist():
            seen, *rest = out_of_band.kernel_stacks[int(kernel_stack[lane])]
            assert isinstance(seen, Blocked)
            at = int(out_of_band.pid[lane]), int(out_of_band.regs[lane, out_of_band.arch.pc])
            if seen.state in _WAITS:
                self._by_pc[at] = seen
            elif seen.state == "R":
                before = self._by_pc.get(at)
                state = before.state if before is not None and before.call == seen.call else UNKNOWN
                kernel_stack[lane] = kernel_stacks.setdefault((seen._replace(state=state), *rest), len(kernel_stacks))
        return replace(out_of_band, kernel_stack=kernel_stack, kernel_stacks=tuple(kernel_stacks))

    def label_samples(self, samples: SampleBatch, blocked: npt.NDArray[np.bool_]) -> SampleBatch:
        """Return the samples at context switches, with a label of the wait as the innermost frame of each.
        Threads that are not blocked wait for a processor.
        """
        kernel_stacks: dict[KernelStack, int] = {(): 0}
        pc = samples.regs[:, WIDE.pc]
        in_call, number = blocked, np.zeros(len(samples), np.uint64)
        if HERE.result >= 0:
            in_call = (samples.regs[:, HERE.call_pc] == pc) & (samples.regs[:, HERE.result] == _ENOSYS)
        if HERE.call_column >= 0:
            number = samples.regs[:, HERE.call_column]
        kernel_stack = np.zeros(len(samples), np.int32) if samples.kernel_stack is None else samples.kernel_stack
        columns = (kernel_stack, blocked, in_call, samples.space, samples.pid, pc.view(np.int64), number.view(np.int64))
        kinds = np.stack([column.astype(np.int64) for column in columns], axis=1)
        _, first, which = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        found = np.zeros(len(first), np.int32)
        for place, lane in enumerate(first.tolist()):
            chain = _chain(samples, lane)
            wait = Blocked(WIDE.name, WAITS_FOR_PROCESSOR)
            if blocked[lane]:
                wait = self._wait(samples, lane, chain, bool(in_call[lane]))
            found[place] = kernel_stacks.setdefault((wait, *(chain if self._kernel else ())), len(kernel_stacks))
        return replace(samples, kernel_stack=found[which.ravel()], kernel_stacks=tuple(kernel_stacks))

    def _wait(self, samples: SampleBatch, lane: int, chain: KernelStack, in_call: bool) -> Blocked:
        known = self._by_chain.get(chain)
        state = known.state if known else self._guess(tuple(frame for frame in chain if not isinstance(frame, Blocked)))
        if in_call:
            pc, space = int(samples.regs[lane, WIDE.pc]), samples.spaces.get(int(samples.space[lane]))
            call = self._coded(space, pc) if space is not None else -1
            if call == IN_REGISTER:
                call = int(samples.regs[lane, HERE.call_column].astype(np.int32))
            if call < 0 and (seen := self._by_pc.get((int(samples.pid[lane]), pc))):
                call = seen.call
            if call >= 0:
                return Blocked(WIDE.name, state, call)
        return known._replace(state=state) if known else Blocked(WIDE.name, state)

    def _coded(self, space: AddressSpace, pc: int) -> int:
        """Return the number of the system call that returns to pc, decoded from the machine code before pc
        (see PerfArch.coded_call).
        """
        key = (space.id, pc)
        if key not in self._by_code:
            if len(self._by_code) > _MAX_LABELS:
                self._by_code.clear()
            self._by_code[key] = HERE.coded_call(space.read(pc - 8, 8))
        return self._by_code[key]


def find_wakeups_before(out_of_band: SampleBatch) -> list[int]:
    """Return the indices of samples that were read from outside after their threads had already been woken."""
    if out_of_band.kernel_stack is None:
        return []
    late = [place for place, frames in enumerate(out_of_band.kernel_stacks) if frames and _state(frames) == "R"]
    found: list[int] = np.flatnonzero(np.isin(out_of_band.kernel_stack, late)).tolist()
    return found


def _chain(samples: SampleBatch, lane: int) -> KernelStack:
    return samples.kernel_stacks[int(samples.kernel_stack[lane])] if samples.kernel_stack is not None else ()


def _state(frames: KernelStack) -> str:
    return frames[0].state if isinstance(frames[0], Blocked) else ""


_PERIODS = 2.5


class WallClockCollector:
    """A collector of on-CPU and off-CPU time that combines two other collectors, and closes them.

    Args:
        source: Collector that samples threads on processors and reports context switches.
        out_of_band: Function that opens the collector which reads the stacks of sleeping threads from
            outside. Its argument is the time between two batches in seconds.
        options: Options of the recording.
    """

    def __init__(
        self, source: SwitchSource, out_of_band: Callable[[float], SampleSource], options: CollectOptions
    ) -> None:
        """Open the collector that reads sleeping threads from outside, and combine it with the source."""
        self._source = source
        self._options = options
        self._handover = options.handover
        looked_at_ns = round(_PERIODS * 1e9 / options.rate_hz)
        self._opened_ns = time.monotonic_ns()
        self._intervals = OffCpuIntervals(options.running, self._opened_ns, looked_at_ns)
        self._lost = LostRunningTime(round(1e9 / options.rate_hz))
        self._labels = WaitLabels(options.kernel)
        self._interpreted: set[int] = set()
        self._began_ns = self._stopped_ns = 0
        self._paused = PausedThreads()
        self._out_of_band = out_of_band(source.flush_s)
        self._out_of_band.acknowledges = False

    def batches(self) -> Iterator[SampleBatch]:
        self._began_ns = max(self._handover.given_ns, self._opened_ns)
        self._intervals.start_at(self._began_ns)
        self._lost.start_at(self._began_ns)
        for out_of_band in self._out_of_band.batches():
            yield from split_at_flushes(self._handover, [out_of_band], self._reached_ns(), self._drain_parts)
        reached_ns = self._reached_ns()
        yield from self._drain(None, reached_ns)
        self._handover.acknowledge_flush(reached_ns)

    def _reached_ns(self) -> int:
        """Return the current time, or the end of the recording if it has ended. Later events belong to no recorded
        time.
        """
        return self._stopped_ns or time.monotonic_ns()

    def _drain_parts(self, out_of_band: list[SampleBatch], until_ns: int) -> Iterator[SampleBatch]:
        for batch in out_of_band:
            yield from self._drain(batch, until_ns)

    def _drain(self, out_of_band: SampleBatch | None, now: int) -> Iterator[SampleBatch]:
        """Yield the batches of on-CPU and off-CPU time up to `now`.

        Args:
            out_of_band: Samples of sleeping threads, read from outside in that time, or None at the end of
                the recording.
            now: End of the time to yield.
        """
        self._forget_gone(self._intervals.paused_threads)
        happened = self._source.take_switches(now)
        attributed = self._attribute(happened, out_of_band, now)
        yield from self._emit(happened, attributed, out_of_band, now)
        self._intervals.resume_threads(*self._source.release_switches())
        self._paused.watch_threads(self._source.paused - happened.paused, self._options.running)
        self._forget_gone(self._intervals.find_silent(now))
        self._paused.keep_only({*self._intervals.paused_threads, *self._source.paused})

    def _forget_gone(self, tids: list[int]) -> None:
        """Forget the threads that have ended but have no switch record of their end, because records were lost or
        paused.
        """
        for tid in self._paused.find_ended(tids):
            self._intervals.forget_thread(tid)

    def _attribute(self, happened: SwitchBatch, out_of_band: SampleBatch | None, now_ns: int) -> IntervalAttribution:
        """Return the off-CPU time that each sample stands for, by matching samples with switch records."""
        self._intervals.add_threads(happened.since_ns)
        self._note_interpreters(out_of_band)
        left = happened.left
        return self._intervals.attribute(
            happened.switches,
            ThreadEvents.make_points(left.tid, left.time_ns),
            ThreadEvents.make_points(out_of_band.tid, out_of_band.time_ns) if out_of_band is not None else _NOTHING,
            now_ns,
            DrainState(
                gaps=happened.gaps,
                paused=happened.paused,
                ran_ns=self._ran(happened.running),
                # only out-of-band samples have an interpreter's frames
                weak=np.flatnonzero(np.isin(left.pid, list(self._interpreted))),
                late=[] if out_of_band is None else find_wakeups_before(out_of_band),
                ends_window=out_of_band is None or self._handover.ends_window(now_ns),
            ),
        )

    def _note_interpreters(self, out_of_band: SampleBatch | None) -> None:
        """Store the pids of processes in which samples from outside (out-of-band) have frames of an interpreter."""
        if out_of_band is not None and out_of_band.chains:
            interpreted = np.array([*self._interpreted, *out_of_band.pid[list(out_of_band.chains)].tolist()], np.int64)
            self._interpreted = set(interpreted[self._source.mask_recorded(interpreted)].tolist())

    def _emit(
        self, happened: SwitchBatch, attributed: IntervalAttribution, out_of_band: SampleBatch | None, now: int
    ) -> Iterator[SampleBatch]:
        """Yield the batches of on-CPU and off-CPU samples. Their order matters: a part of an interval refers to the
        last batch with its thread's stack.
        """
        if self._options.running:
            yield from (
                batch.take_samples(np.flatnonzero(batch.time_ns >= self._began_ns)) for batch in happened.running
            )
            yield from self._lost_parts(happened, now)
        yield from self._parts(attributed, now)
        if out_of_band is not None:
            out_of_band = self._labels.relabel_samples(out_of_band)
            yield self._of_out_of_band(out_of_band, attributed, ~attributed.out_of_band_open)
        self._learn_waits(happened.left, attributed, out_of_band)
        yield from self._of_samples(happened, attributed)
        if out_of_band is not None:
            yield self._of_out_of_band(out_of_band, attributed, attributed.out_of_band_open)

    def _lost_parts(self, happened: SwitchBatch, now: int) -> Iterator[SampleBatch]:
        """Yield a batch of the time that threads ran while records of their samples were lost."""
        tid, time_ns = (
            np.concatenate([getattr(batch, name) for batch in happened.running] or [np.zeros(0, np.int64)])
            for name in ("tid", "time_ns")
        )
        samples = ThreadEvents.make_points(tid, time_ns)
        without = {*happened.paused, *self._intervals.paused_threads}
        found = self._lost.find_lost_time(happened.switches, samples, happened.unsampled, happened.gaps, without, now)
        if not found:
            return
        tids, length = (np.array(column, np.int64) for column in zip(*found, strict=True))
        ids = self._source.find_thread_ids(tids, now - length)
        wanted = self._source.mask_recorded(ids[0]) & self._source.mask_shown(tids, now - length)
        batch = replace(_without_registers(SampleKind.LOST, ids, tids, now - length, length), followed=False)
        yield batch.take_samples(np.flatnonzero(wanted))

    def _ran(self, running: list[SampleBatch]) -> dict[int, int]:
        """Return the on-CPU time in ns of threads whose switch records are paused, by tid. It comes from
        their samples, or from the kernel's accounts if on-CPU time is not recorded.
        """
        if self._options.running:
            tid = np.concatenate([batch.tid for batch in running])
            tids, counts = np.unique(tid, return_counts=True)
            return dict(zip(tids.tolist(), (counts * round(1e9 / self._options.rate_hz)).tolist(), strict=True))
        return self._paused.read_run_ns()

    def _learn_waits(
        self, samples: SampleBatch, attributed: IntervalAttribution, out_of_band: SampleBatch | None
    ) -> None:
        if out_of_band is None or out_of_band.kernel_stack is None:
            return
        pairs = [
            (sample, out_of_band.kernel_stacks[int(out_of_band.kernel_stack[lane])])
            for sample, lane in attributed.pairs
        ]
        self._labels.learn(
            samples, [(sample, frames[0]) for sample, frames in pairs if frames and isinstance(frames[0], Blocked)]
        )

    def _of_samples(self, happened: SwitchBatch, attributed: IntervalAttribution) -> list[SampleBatch]:
        """Return the samples at context switches, each with the off-CPU time that its stack stands for."""
        kept = np.flatnonzero(attributed.sample_ns > LEFT_OUT)
        left = happened.left.take_samples(kept)
        time_ns = np.maximum(left.time_ns, self._began_ns)
        some = replace(left, followed=True, time_ns=time_ns, length_ns=attributed.sample_ns[kept])
        some = self._labels.label_samples(some, attributed.sample_blocked[kept])
        return self._source.split_by_width(some, happened.narrow[kept])

    def _of_out_of_band(self, out_of_band: SampleBatch, attributed: IntervalAttribution, those: Mask) -> SampleBatch:
        """Return the samples that were read from outside, each with its off-CPU time, for intervals without a
        sample at the context switch.
        """
        kept = np.flatnonzero(those & (attributed.out_of_band_ns != LEFT_OUT))
        length = np.where(attributed.out_of_band_ns == BY_WEIGHT, -1, attributed.out_of_band_ns)[kept]
        return replace(out_of_band.take_samples(kept), length_ns=length, stopped=False)

    def _parts(self, attributed: IntervalAttribution, now: int) -> Iterator[SampleBatch]:
        """Yield batches of off-CPU time without a new sample: of intervals whose stack was in an earlier batch, and of
        intervals without a stack.
        """
        if attributed.carried:
            tid, since, length = (np.array(column, np.int64) for column in zip(*attributed.carried, strict=True))
            yield _without_registers(SampleKind.UNCHANGED, self._source.find_thread_ids(tid, since), tid, since, length)
        if attributed.bare:
            tid, blocked, length = (np.array(column, np.int64) for column in zip(*attributed.bare, strict=True))
            wanted = self._source.mask_shown(tid, now - length)
            waits = tuple((Blocked(WIDE.name, state),) for state in (WAITS_FOR_PROCESSOR, UNKNOWN))
            batch = _without_registers(
                SampleKind.UNSEEN, self._source.find_thread_ids(tid, now - length), tid, now - length, length
            )
            batch = replace(
                batch, kernel_stack=blocked.astype(np.int32) + 1, kernel_stacks=((), *waits), followed=False
            )
            yield batch.take_samples(np.flatnonzero(wanted))

    def learn(self, feedback: Feedback) -> None:
        source_id = feedback.batch.source_id
        if source_id == self._out_of_band.source_id:
            self._out_of_band.learn(feedback)
        elif source_id in self._source.source_ids:
            self._source.learn(feedback)

    @property
    def source_ids(self) -> frozenset[int]:
        return self._source.source_ids | {self._out_of_band.source_id}

    @property
    def alive(self) -> list[int]:
        """Pids of the recorded processes that have not ended."""
        return self._source.alive

    def take_new_processes(self) -> set[int]:
        """Return the pids of processes that appeared or called exec since the last call. Some may have ended."""
        return self._source.take_new_processes()

    def threads(self) -> list[ThreadInfo]:
        known = {info.key: info for info in (*self._source.threads(), *self._out_of_band.threads())}
        return [known[key] for key in sorted(known)]

    def retire(self) -> None:
        self._source.retire()
        self._out_of_band.retire()

    def stats(self) -> CollectorStats:
        running, out_of_band = self._source.stats(), self._out_of_band.stats()
        return CollectorStats(
            ticks=running.ticks,
            ticking_ns=running.ticking_ns if self._options.running else 0,
            pauses=out_of_band.pauses,
            skipped=running.skipped + out_of_band.skipped,
            unchanged=out_of_band.unchanged,
            blocked=out_of_band.blocked,
            notes=tuple(dict.fromkeys((*running.notes, *out_of_band.notes))),
        )

    def stop(self) -> None:
        self._stopped_ns = self._handover.end()
        self._out_of_band.stop()

    def end_now(self) -> None:
        """End the iteration of batches() with the time until this moment, because another source becomes the
        main source.
        """
        self._stopped_ns = time.monotonic_ns()
        self._out_of_band.stop()

    def close(self) -> None:
        try:
            self._out_of_band.close()
        finally:
            self._source.close()


def _without_registers(
    kind: SampleKind, ids: tuple[npt.NDArray[np.int32], I64], tid: I64, time_ns: I64, length_ns: I64
) -> SampleBatch:
    """Return a batch of samples without registers, for times for which no stack was read."""
    pid, started = ids
    bare = build_stackless_batch(WIDE, NOBODY, np.full(len(tid), kind, np.uint8), time_ns, pid, tid)
    return replace(bare, stopped=False, length_ns=length_ns, started=started)


_NOTHING = ThreadEvents.make_points(np.zeros(0, np.int64), np.zeros(0, np.int64))
