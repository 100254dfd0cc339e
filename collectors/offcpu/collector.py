"""A collector of wall-clock time: on-CPU time by the kernel's samples, off-CPU time by the length of each interval.

No thread is stopped. Switch records of the kernel report when a thread left its processor and returned. The stack of an
interval is that of the sample that the kernel took at the switch. If it may not take one, the stack is read from
outside while the thread sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import NOBODY, CollectorStats, Feedback, SampleSource
from pyprof.collectors.batch_builder import build_stackless_batch, split_at_flushes
from pyprof.collectors.linux.sampled_arch import WIDE
from pyprof.collectors.offcpu.interval_attribution import BY_WEIGHT, LEFT_OUT, IntervalAttribution, OffCpuIntervals
from pyprof.collectors.offcpu.stack_sources import DrainState
from pyprof.collectors.offcpu.switch_record_gaps import PausedThreads
from pyprof.collectors.offcpu.wait_labels import UNKNOWN, WAITS_FOR_PROCESSOR, WaitLabels, find_wakeups_before
from pyprof.collectors.switch_events import I64, Mask, SwitchBatch, SwitchSource, ThreadEvents
from pyprof.model.marker_frames import Blocked
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.options import CollectOptions
from pyprof.records import replace

_PERIODS = 2.5


class WallClockCollector:
    """A collector of on-CPU and off-CPU time, from two other collectors, which it closes.

    Args:
        source: Samples threads on processors, and reports switches.
        out_of_band: Returns the collector that reads the stacks of sleeping threads and sets the pace. Its argument is
            the time between two batches in seconds.
        options: Options of the recording.
    """

    def __init__(
        self, source: SwitchSource, out_of_band: Callable[[float], SampleSource], options: CollectOptions
    ) -> None:
        """Open a wall-clock collector and its collector of out-of-band samples."""
        self._source = source
        self._options = options
        self._handover = options.handover
        looked_at_ns = round(_PERIODS * 1e9 / options.rate_hz)
        self._opened_ns = time.monotonic_ns()
        self._intervals = OffCpuIntervals(options.running, self._opened_ns, looked_at_ns)
        self._labels = WaitLabels(options.kernel)
        self._interpreted: set[int] = set()
        self._began_ns = self._stopped_ns = 0
        self._paused = PausedThreads()
        self._out_of_band = out_of_band(source.flush_s)
        self._out_of_band.acknowledges = False

    def batches(self) -> Iterator[SampleBatch]:
        self._began_ns = max(self._handover.given_ns, self._opened_ns)
        self._intervals.start_at(self._began_ns)
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
        """Yield all batches of wall-clock time until `now`.

        Args:
            out_of_band: Samples from outside in that time, or None at the end of the recording.
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
        """Forget threads that have ended without a switch record, because records were lost or paused."""
        for tid in self._paused.find_ended(tids):
            self._intervals.forget_thread(tid)

    def _attribute(self, happened: SwitchBatch, out_of_band: SampleBatch | None, now_ns: int) -> IntervalAttribution:
        """Return the off-CPU time that each sample stands for."""
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
        """Note which processes run an interpreter whose frames are in out-of-band samples."""
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
        yield from self._parts(attributed, now)
        if out_of_band is not None:
            out_of_band = self._labels.relabel_samples(out_of_band)
            yield self._of_out_of_band(out_of_band, attributed, ~attributed.out_of_band_open)
        self._learn_waits(happened.left, attributed, out_of_band)
        yield from self._of_samples(happened, attributed)
        if out_of_band is not None:
            yield self._of_out_of_band(out_of_band, attributed, attributed.out_of_band_open)

    def _ran(self, running: list[SampleBatch]) -> dict[int, int]:
        """Return the on-CPU time of each thread that switches often: from samples, or if those are not shown, from the
        kernel.
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
        """Return switch-out samples, each with the time of its interval and of the intervals that it stands for."""
        kept = np.flatnonzero(attributed.sample_ns > LEFT_OUT)
        left = happened.left.take_samples(kept)
        time_ns = np.maximum(left.time_ns, self._began_ns)
        some = replace(left, followed=True, time_ns=time_ns, length_ns=attributed.sample_ns[kept])
        some = self._labels.label_samples(some, attributed.sample_blocked[kept])
        return self._source.split_by_width(some, happened.narrow[kept])

    def _of_out_of_band(self, out_of_band: SampleBatch, attributed: IntervalAttribution, those: Mask) -> SampleBatch:
        """Return out-of-band samples, with their off-CPU time, for intervals without a switch-out sample."""
        kept = np.flatnonzero(those & (attributed.out_of_band_ns != LEFT_OUT))
        length = np.where(attributed.out_of_band_ns == BY_WEIGHT, -1, attributed.out_of_band_ns)[kept]
        return replace(out_of_band.take_samples(kept), length_ns=length, stopped=False)

    def _parts(self, attributed: IntervalAttribution, now: int) -> Iterator[SampleBatch]:
        """Yield off-CPU time of intervals whose stack was attributed before, and of intervals without any stack."""
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
        """The recorded processes that have not ended."""
        return self._source.alive

    def take_new_processes(self) -> set[int]:
        """Return processes that appeared or called exec since the last call. Some may have ended."""
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
        """End batches() with the time until this moment, because another source follows."""
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
    """Return a batch of samples without registers; `ids` is a result of SwitchSource.ids_of."""
    pid, started = ids
    bare = build_stackless_batch(WIDE, NOBODY, np.full(len(tid), kind, np.uint8), time_ns, pid, tid)
    return replace(bare, stopped=False, length_ns=length_ns, started=started)


_NOTHING = ThreadEvents.make_points(np.zeros(0, np.int64), np.zeros(0, np.int64))
