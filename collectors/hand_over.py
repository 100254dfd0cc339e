"""Threads whose stacks the kernel cannot copy, sampled by stops; all others by perf_events.

The kernel copies 64 KB of one stack. A thread with longer stacks, or with handlers on a stack of their own, is stopped
for its samples instead, as long as it has such stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.chosen import TOO_LONG, Chosen
from pyprof.collectors.perf_event import PerfCollector
from pyprof.collectors.ptrace import PtraceCollector
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.model.pauses import Pauses
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch


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
            self._chosen.forget_ended()
            if not self._chosen:
                continue
            try:
                self._stops = self._open_stops(self._chosen)
            except NoSuchProcess:
                continue
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
            self._perf.saw(batch)
            yield from self._perf.drain()
            self._by_stops = True
            yield batch
            self._by_stops = False
            for tid in stops.refused:
                self._chosen.refuse(tid)
            self._chosen.forget_ended()
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
        threads, processes = self._chosen.threads, self._chosen.processes
        if not threads:
            return ()
        what = "1 thread" if threads == 1 else f"{threads} threads"
        if processes:
            what += f", and then all threads of {'their process' if processes == 1 else 'their processes'},"
        return (f"Stopped for their samples: {what} with {TOO_LONG} (--stack-size 64K stops nothing)",)

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
