"""All of a thread's time: on a processor as the kernel samples it, off it by the length of each stretch.

Nothing is stopped. When a thread leaves its processor and comes back is in records of the kernel; its stack is that
of the sample taken as it left, where the kernel may give one, else what was read from outside while it slept.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from pyprof.collectors.base import NOBODY, CollectorStats, Feedback, Source
from pyprof.collectors.batch_builder import bare_batch
from pyprof.collectors.hybrid.stop_candidates import TOO_LONG, beyond_copy
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.perf_arch import WIDE
from pyprof.collectors.offcpu.gaps import I64
from pyprof.collectors.offcpu.intervals import BY_WEIGHT, ENDED, LEFT_OUT, Drain, OffCpuIntervals, Points, Told
from pyprof.collectors.offcpu.wait_labels import UNKNOWN, WAITS_FOR_PROCESSOR, WaitLabels, late_looks
from pyprof.collectors.perf.batches import by_width
from pyprof.collectors.perf.collector import PerfCollector
from pyprof.collectors.perf.switches import Switches
from pyprof.model.kernel import blocked_word
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.options import CollectOptions

_FOREVER_NS = 2**62
_LOOKS = 2.5


class WallClockCollector:
    """running: samples threads on processors; switches: says when they leave them; looks: has the clock, reads threads
    that sleep, and only those. All three are this one's to close.
    """

    def __init__(
        self, running: PerfCollector, switches: Switches, looks: Callable[[float], Source], options: CollectOptions
    ) -> None:
        """looks: makes the collector that looks from outside, given how often it is to hand over what it has seen."""
        self._running = running
        self._switches = switches
        self._options = options
        self._stretches = OffCpuIntervals(options.running, time.monotonic_ns(), round(_LOOKS * 1e9 / options.rate_hz))
        self._labels = WaitLabels(options.kernel)
        self._interpreted: set[int] = set()
        self._run_ns: dict[int, int] = {}
        self._started: dict[int, int] = {}
        self._cuts = False
        running.without_trial()
        running.joined = switches.attach
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            switches.attach(running.alive)
        self._looks = looks(switches.flush_s)
        self._learners: dict[int, Callable[[Feedback], None]] = {
            running.source_id: running.learn,
            switches.source_id: switches.learn,
            self._looks.source_id: self._looks.learn,
        }

    def batches(self) -> Iterator[SampleBatch]:
        for looks in self._looks.batches():
            yield from self._drain(looks)
        yield from self._drain(None)

    def _drain(self, looks: SampleBatch | None) -> Iterator[SampleBatch]:
        """What happened until now. looks: what was seen from outside meanwhile; None: this is the end."""
        last = looks is None
        self._forget_gone(self._stretches.owed)
        now = time.monotonic_ns()
        switched = self._switches.take(now)
        taken = self._running.take(_FOREVER_NS if last else now, switched.samples, self._switches.rings.words)
        self._stretches.meet(self._switches.since_ns)
        if looks is not None and looks.chains:
            interpreted = np.array([*self._interpreted, *looks.pid[list(looks.chains)].tolist()], np.int64)
            self._interpreted = set(interpreted[self._running.known(interpreted)].tolist())
        samples, chosen = taken.switched, np.flatnonzero(taken.wanted)
        # looks have an interpreter's frames, samples have not
        weak = np.flatnonzero(np.isin(samples.pid[chosen], list(self._interpreted)))
        looked = Points.of(looks.tid, looks.time_ns) if looks is not None else _NOTHING
        told = self._stretches.tell(
            switched.switches.at(self._running.known(switched.pid) | (switched.switches.kind == ENDED)),
            Points.of(samples.tid[chosen], samples.time_ns[chosen]),
            looked,
            now,
            Drain(
                gaps=switched.gaps,
                paused=switched.paused,
                ran_ns=self._ran(taken.running),
                weak=weak,
                late=[] if looks is None else late_looks(looks),
                last=last,
            ),
        )
        if self._options.running:
            yield from taken.running
        yield from self._parts(told)
        if looks is not None:
            looks = self._labels.relabelled(looks)
            yield from self._of_looks(looks, told, ~told.look_open)
        whole = samples.take(chosen)
        self._learn_waits(whole, told, looks)
        yield from self._of_samples(whole, told, switched.samples.narrow[chosen])
        if looks is not None:
            yield from self._of_looks(looks, told, told.look_open)
        self._running.done_with(taken.scan)
        self._stretches.resume(*self._switches.done_with(switched, self._running.alive))
        for tid in self._switches.paused - switched.paused:
            if not self._options.running:
                self._run_ns[tid] = _run_ns(tid)
            if (start := procfs.started(tid)) is not None:
                self._started[tid] = start
        self._forget_gone(self._stretches.silent(now))
        lasting = {*self._stretches.owed, *self._switches.paused}
        for kept in (self._run_ns, self._started):
            for tid in kept.keys() - lasting:
                del kept[tid]

    def _forget_gone(self, tids: list[int]) -> None:
        """Those of the threads that have ended: there is no record of the end where records were lost, or of a thread
        that was left alone.
        """
        for tid in tids:
            start = procfs.started(tid)
            if start is None or self._started.get(tid, start) != start:
                self._stretches.forget(tid)
                self._started.pop(tid, None)

    def _ran(self, running: list[SampleBatch]) -> dict[int, int]:
        """How long each thread that switches often was on a processor: as it will be shown, or where that is not
        shown, as the kernel counts it.
        """
        if self._options.running:
            tid = np.concatenate([batch.tid for batch in running])
            tids, counts = np.unique(tid, return_counts=True)
            return dict(zip(tids.tolist(), (counts * round(1e9 / self._options.rate_hz)).tolist(), strict=True))
        before, self._run_ns = self._run_ns, {tid: _run_ns(tid) for tid in self._run_ns}
        return {tid: max(self._run_ns[tid] - ns, 0) for tid, ns in before.items()}

    def _learn_waits(self, samples: SampleBatch, told: Told, looks: SampleBatch | None) -> None:
        if looks is None or looks.tip is None:
            return
        pairs = [(sample, looks.tips[int(looks.tip[look])]) for sample, look in told.pairs]
        self._labels.learn(samples, [(sample, words[0]) for sample, words in pairs if words])

    def _of_samples(
        self, samples: SampleBatch, told: Told, narrow: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> list[SampleBatch]:
        """Switch-out samples, each for the time of its stretch and of those that it stands for."""
        kept = np.flatnonzero(told.sample_ns > LEFT_OUT)
        some = replace(
            samples.take(kept), followed=True, length_ns=told.sample_ns[kept], source_id=self._switches.source_id
        )
        some = self._labels.labelled(some, told.sample_blocked[kept])
        return by_width(some, np.ones(len(kept), np.bool_), narrow[kept])

    def _of_looks(
        self, looks: SampleBatch, told: Told, those: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> Iterator[SampleBatch]:
        """What was seen from outside where there is no sample."""
        kept = np.flatnonzero(those & (told.look_ns != LEFT_OUT))
        length = np.where(told.look_ns == BY_WEIGHT, -1, told.look_ns)[kept]
        yield replace(looks.take(kept), length_ns=length, stopped=False)

    def _parts(self, told: Told) -> Iterator[SampleBatch]:
        """Time of stretches whose stack was told before, and of those that nobody saw."""
        if told.carried:
            tid, since, length = (np.array(column, np.int64) for column in zip(*told.carried, strict=True))
            yield _without_registers(SampleKind.UNCHANGED, tid, since, length)
        if told.bare:
            now = time.monotonic_ns()
            tid, blocked, length = (np.array(column, np.int64) for column in zip(*told.bare, strict=True))
            wanted = self._running.shown(tid)
            words = tuple((blocked_word(WIDE, state, -1),) for state in (WAITS_FOR_PROCESSOR, UNKNOWN))
            batch = _without_registers(SampleKind.UNSEEN, tid, now - length, length)
            batch = replace(batch, tip=blocked.astype(np.int32) + 1, tips=((), *words), followed=False)
            yield batch.take(np.flatnonzero(wanted))

    def learn(self, feedback: Feedback) -> None:
        source_id = feedback.batch.source_id
        if source_id in self._learners:
            self._learners[source_id](feedback)
            self._cuts |= source_id != self._looks.source_id and bool(beyond_copy(feedback).any())

    @property
    def source_ids(self) -> frozenset[int]:
        return frozenset(self._learners)

    @property
    def alive(self) -> list[int]:
        """The processes that have not ended."""
        return self._running.alive

    def news(self) -> set[int]:
        """See PerfCollector."""
        return self._running.news()

    def threads(self) -> list[ThreadInfo]:
        known = {(info.pid, info.tid): info for info in (*self._running.threads(), *self._looks.threads())}
        return [known[key] for key in sorted(known)]

    def stats(self) -> CollectorStats:
        running, looks = self._running.stats(), self._looks.stats()
        return CollectorStats(
            ticks=running.ticks,
            ticking_ns=running.ticking_ns if self._options.running else 0,
            pauses=looks.pauses,
            skipped=running.skipped + looks.skipped,
            unchanged=looks.unchanged,
            blocked=looks.blocked,
            notes=tuple(dict.fromkeys((*running.notes, *self._notes(), *looks.notes))),
        )

    def _notes(self) -> tuple[str, ...]:
        stacks = "of when threads left it"
        if not self._switches.stacks:
            stacks = f"read from outside (those {stacks}: sudo sysctl kernel.perf_event_paranoid=1)"
        exact = "exact"
        if lost_ns := self._switches.lost_ns:
            exact += f", but for {lost_ns / 1e9:.2g} s of which records were lost, counted like the time around"
        notes = [f"Time off the processor is {exact}; its stacks are {stacks}"]
        if self._cuts:
            notes.append(f"Cut short in this mode: {TOO_LONG} (--collector ptrace has them whole)")
        if count := len(self._switches.rested):
            what = "The machine" if self._switches.everything else f"{count} thread{'s' if count > 1 else ''}"
            notes.append(f"{what} switched so often that only a part of it was recorded; the rest is counted like that")
        return tuple(notes)

    def stop(self) -> None:
        self._looks.stop()

    def close(self) -> None:
        try:
            self._looks.close()
        finally:
            try:
                self._running.close()
            finally:
                self._switches.close()


def _run_ns(tid: int) -> int:
    try:
        with open(f"/proc/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _without_registers(kind: SampleKind, tid: I64, time_ns: I64, length_ns: I64) -> SampleBatch:
    bare = bare_batch(WIDE, NOBODY, np.full(len(tid), kind, np.uint8), time_ns, tid, tid)
    return replace(bare, stopped=False, length_ns=length_ns)


_NOTHING = Points.of(np.zeros(0, np.int64), np.zeros(0, np.int64))
