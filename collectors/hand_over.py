"""Threads whose stacks the kernel cannot copy, sampled by stops; all others by perf_events.

The kernel copies 64 KB of one stack. A thread with longer stacks, or with handlers on a stack of their own, is stopped
for its samples instead, as long as it has such stacks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.perf_attr import MOST_STACK
from pyprof.collectors.perf_event import PerfCollector
from pyprof.collectors.ptrace import PtraceCollector
from pyprof.errors import PyprofError
from pyprof.model.pauses import Pauses
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch

_OF = 4000
"""A thread is handed over when one of so many samples is cut where the kernel's copy ends, more if that was no help."""

_LEAST_BACK = 512
"""So many stops in a row that perf_events could have spared give a thread back; twice as many each time."""
_PATIENCE = 8
"""So many times as many cut samples hand a thread over again that was given back after no stop was of use."""

_MOST_THREADS = 4096

REASON = "stacks that are longer than the kernel copies, or go on in another stack"

_FITS = MOST_STACK * 7 // 8


@dataclass(slots=True)
class _Thread:
    """seen, cut: samples by perf_events. since_ns: stopped for its samples from then on, until until_ns. fitting: stops
    in a row that were not needed; enough: how many give it back; useful: one was needed. most_cut: so many cut samples
    hand it over. refused: it cannot be stopped.
    """

    pid: int
    seen: int = 0
    cut: int = 0
    since_ns: float = math.inf
    until_ns: float = math.inf
    fitting: int = 0
    enough: int = _LEAST_BACK
    useful: bool = False
    most_cut: int = 1
    refused: bool = False


class Chosen:
    """The threads that are sampled by stops: what collectors/ptrace.py asks of a selection. count: how often one was
    chosen.
    """

    refused: tuple[str, ...] = ()
    lasting = True

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._stopped: set[int] = set()
        self._left: set[int] = set()
        self.count = 0

    def __contains__(self, tid: object) -> bool:
        return tid in self._stopped

    def __len__(self) -> int:
        return len(self._stopped)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(sorted({self._threads[tid].pid for tid in self._stopped}))

    def find(self, known: Container[int]) -> Iterable[int]:
        """Their processes that are not known yet."""
        return [pid for pid in self.pids if pid not in known]

    def elsewhere(self, tid: npt.NDArray[np.int32], time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which samples of perf_events are of threads that were being stopped."""
        found = np.zeros(len(tid), np.bool_)
        for each in self._left:
            thread = self._threads[each]
            found |= (tid == each) & (time_ns >= thread.since_ns) & (time_ns < thread.until_ns)
        return found

    def learn_copied(self, feedback: Feedback) -> None:
        """What walks of the kernel's copies needed."""
        tids, pids = feedback.batch.tid, feedback.batch.pid
        missing, base = feedback.missing, feedback.batch.stack.base
        beyond = (missing > 0) & ((missing < base) | (missing - base > _FITS))  # less: larger copies are on their way
        self._prune()
        for tid in np.unique(tids).tolist():
            lanes = tids == tid
            thread = self._threads.get(tid)
            if thread is None or thread.pid != int(pids[lanes][0]):
                thread = self._threads[tid] = _Thread(int(pids[lanes][0]))
            thread.seen += int(np.count_nonzero(lanes))
            thread.cut += int(np.count_nonzero(beyond & lanes))
            if thread.cut >= thread.most_cut and not thread.refused and tid not in self._stopped:
                self._stopped.add(tid)
                self._left.add(tid)
                self.count += 1
                thread.since_ns, thread.until_ns, thread.fitting = math.inf, math.inf, 0
                thread.useful = False
            if thread.seen >= _OF:
                thread.seen = thread.cut = 0

    def others(self, feedback: Feedback) -> Feedback:
        """Without what larger copies cannot help."""
        if not self._stopped:
            return feedback
        kept = np.flatnonzero(~np.isin(feedback.batch.tid, list(self._stopped)))
        batch = feedback.batch.take(kept)
        return Feedback(batch, feedback.top[kept], feedback.missing[kept], feedback.stop[kept], feedback.look)

    def begun(self, batch: SampleBatch) -> None:
        """Samples by stops: from the first one on a thread's copies are not wanted."""
        for tid in np.unique(batch.tid).tolist():
            if tid in self._stopped and self._threads[tid].since_ns == math.inf:
                self._threads[tid].since_ns = int(batch.time_ns[batch.tid == tid].min())

    def learn_stopped(self, feedback: Feedback) -> None:
        """What walks of our own copies needed: a thread whose stops are not worth it any more is given back."""
        batch = feedback.batch
        columns = zip(batch.tid.tolist(), batch.stack.base.tolist(), feedback.top.tolist(), strict=True)
        for lane, (tid, base, top) in enumerate(columns):
            if tid not in self._stopped:
                continue
            thread = self._threads[tid]
            needed = top and (lane in batch.stack.pieces or not base <= top <= base + _FITS)
            thread.fitting = 0 if needed else thread.fitting + 1
            thread.useful = thread.useful or bool(needed)
            if thread.fitting >= thread.enough:
                if thread.useful:
                    thread.enough *= 2
                else:
                    thread.most_cut *= _PATIENCE
                self._give_back(tid)

    def refuse(self, tid: int) -> None:
        """It cannot be stopped: perf_events has it back for good."""
        if tid in self._stopped:
            self._threads[tid].refused = True
            self._give_back(tid)

    def refuse_all(self) -> None:
        for tid in list(self._stopped):
            self.refuse(tid)

    def _give_back(self, tid: int) -> None:
        self._stopped.discard(tid)
        thread = self._threads[tid]
        thread.until_ns, thread.seen, thread.cut = time.monotonic_ns(), 0, 0

    def _prune(self) -> None:
        """Threads end, and their numbers come again."""
        if len(self._threads) > _MOST_THREADS:
            self._threads = {tid: thread for tid, thread in self._threads.items() if tid in self._stopped}
            self._left &= self._threads.keys()


class HandOver:
    """perf: samples everything else. open_stops: opens the collector that stops; may raise what that raises."""

    def __init__(self, perf: PerfCollector, open_stops: Callable[[Chosen], PtraceCollector]) -> None:
        self._perf = perf
        self._open_stops = open_stops
        self._stops: PtraceCollector | None = None
        self._chosen = Chosen()
        self._known: dict[tuple[int, int], ThreadInfo] = {}
        self._pauses = Pauses()
        self._skipped = 0
        self._by_stops = False
        self._stopping = False

    def batches(self) -> Iterator[SampleBatch]:
        while True:
            yield from self._perf.batches()
            if self._stopping or not self._chosen or not self._perf.goes_on:
                return
            try:
                self._stops = self._open_stops(self._chosen)
            except (PyprofError, OSError):
                self._chosen.refuse_all()
                continue
            try:
                yield from self._both(self._stops)
            finally:
                self._close_stops()
            if self._stopping or not self._perf.goes_on:
                return

    def _both(self, stops: PtraceCollector) -> Iterator[SampleBatch]:
        if self._stopping:
            stops.stop()
        for batch in stops.batches():
            self._chosen.begun(batch)
            yield from self._perf.drain()
            self._by_stops = True
            yield batch
            self._by_stops = False
            for tid in stops.refused:
                self._chosen.refuse(tid)
            if not self._chosen or not self._perf.goes_on:
                stops.stop()
        yield from self._perf.drain(self._stopping or not self._perf.goes_on)

    def learn(self, feedback: Feedback) -> None:
        if self._by_stops and self._stops is not None:
            self._stops.learn(feedback)
            self._chosen.learn_stopped(feedback)
            return
        self._chosen.learn_copied(feedback)
        if self._chosen and self._stops is None:
            self._perf.leave(self._chosen.elsewhere)
        self._perf.learn(self._chosen.others(feedback))

    def _close_stops(self) -> None:
        stops, self._stops = self._stops, None
        if stops is None:
            return
        self._known |= {(info.pid, info.tid): info for info in stops.threads()}
        stats = stops.stats()
        self._pauses += stats.pauses
        self._skipped += stats.skipped
        stops.close()

    def threads(self) -> list[ThreadInfo]:
        now = [*self._perf.threads(), *(self._stops.threads() if self._stops else ())]
        known = self._known | {(info.pid, info.tid): info for info in now}
        return [known[key] for key in sorted(known)]

    def stats(self) -> CollectorStats:
        copied = self._perf.stats()
        stopped = self._stops.stats() if self._stops else None
        return replace(
            copied,
            pauses=self._pauses + stopped.pauses if stopped else self._pauses,
            skipped=copied.skipped + self._skipped + (stopped.skipped if stopped else 0),
            unchanged=stopped.unchanged if stopped else 0,
            notes=(*copied.notes, *self._notes()),
        )

    def _notes(self) -> tuple[str, ...]:
        count = self._chosen.count
        if not count:
            return ()
        what = "thread" if count == 1 else "threads"
        return (f"Stopped for their samples: {count} {what} with {REASON} (--stack-size 64K stops nothing)",)

    def stop(self) -> None:
        self._stopping = True
        self._perf.stop()
        if self._stops is not None:
            self._stops.stop()

    def close(self) -> None:
        try:
            self._close_stops()
        finally:
            self._perf.close()
