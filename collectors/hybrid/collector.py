"""A collector that samples some threads and processes by stops, and all others by perf_events.

The kernel copies 64 KB of one stack. A thread with longer stacks, or with signal handlers on an alternate stack, is
stopped for its samples as long as it has such stacks. A process that runs an interpreter is stopped until it executes
another program, because only stops can copy its frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import split_at_flushes
from pyprof.collectors.hybrid.by_image import ByImage
from pyprof.collectors.hybrid.stop_candidates import StopCandidates
from pyprof.collectors.hybrid.succession import ClosedCollectors, joined
from pyprof.collectors.perf.collector import PerfCollector
from pyprof.collectors.perf.copy_size import TOO_LONG
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.model.profile import ThreadInfo
from pyprof.model.reasons import said
from pyprof.model.sample import SampleBatch
from pyprof.records import replace

if TYPE_CHECKING:
    from pyprof.collectors.ptrace.collector import PtraceCollector


class HybridCollector:
    """A collector that samples some threads by stops, and all others by perf_events.

    Args:
        perf: Samples all other threads.
        open_stops: Opens the collector that stops threads, and raises its errors.
    """

    def __init__(
        self,
        perf: PerfCollector,
        open_stops: Callable[[StopCandidates], PtraceCollector],
        by_image: ByImage | None = None,
        by_depth: bool = True,
        launched: bool = False,
        instead: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a collector that samples some threads by stops and all others by perf_events.

        Args:
            by_image: Decides which programs need stops, None for none.
            by_depth: True if a long stack may need stops.
            launched: True if the program has not started yet.
            instead: Called before any thread is stopped, except because of a stack's length. It returns True if another
                collector samples all threads from now on.
        """
        self._perf = perf
        self._open_stops = open_stops
        self._by_image = by_image
        self._by_depth = by_depth
        self._launched = launched
        self._instead = instead
        self._copied = False
        self._stops: PtraceCollector | None = None
        self._candidates = StopCandidates(perf.most_copy)
        self._past = ClosedCollectors()
        self._stopping = False
        perf.slots = self._slots

    def batches(self) -> Iterator[SampleBatch]:
        of_perf = self._perf.batches()  # its news begin now, because the first checks of programs take a while
        if self._by_image is not None:
            self._watch(first=True)
            self._perf.watch = self._watch
            self._candidates.watch = self._watch
        while True:
            if not self._candidates:
                yield from self._of_perf(of_perf)
                of_perf = self._perf.batches()
            if self._stopping or not self._candidates or not self._perf.members.has_processes_left:
                return
            self._candidates.forget_ended()
            if not self._candidates:
                continue
            if not self._candidates.long and self._instead():
                yield from self._of_perf(self._perf.yield_until())
                return
            try:
                self._stops = self._open_stops(self._candidates)
            except NoSuchProcess:
                continue
            except (PyprofError, OSError):
                self._candidates.refuse_all()
                continue
            try:
                yield from self._both(self._stops)
            finally:
                self._close_stops()
            if self._stopping or not self._perf.members.has_processes_left:
                return

    def _watch(self, first: bool = False) -> int | None:
        """Check which programs need stops. Return None if threads must be stopped now, else the time until the next
        check in ns.
        """
        assert self._by_image is not None
        self._by_image.changed(self._perf.members.take_new_processes())
        for pid in self._by_image.check_due(all_of_them=first, is_over=lambda: self._stopping):
            if pid in self._by_image.reasons and self._perf.members.follows_children(pid):
                self._candidates.choose_image(pid, from_start=first and not self._launched)
            else:
                self._candidates.release_image(pid)
        if self._candidates and self._stops is None:
            self._perf.leave_samples(self._candidates.elsewhere)
        return None if self._candidates else self._by_image.wait_ns()

    def _of_perf(self, batches: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
        for batch in batches:
            self._copied = self._copied or len(batch) > 0
            yield batch

    def _both(self, stops: PtraceCollector) -> Iterator[SampleBatch]:
        if self._stopping:
            stops.stop()
        stops.acknowledges = False
        flushed_ns = stops.flushed_ns
        for batch in stops.batches():
            self._candidates.begun(batch)
            self._perf.account_batch(batch)
            if stops.flushed_ns == flushed_ns:  # an empty batch, but rings fill meanwhile
                yield from self._with_perf([batch], self._perf.handover.bound(time.monotonic_ns()))
            else:
                flushed_ns = stops.flushed_ns
                yield from split_at_flushes(self._perf.handover, [batch], flushed_ns, self._with_perf)
            for tid in stops.refused:
                self._candidates.refuse(tid)
            self._candidates.forget_ended()
            if not self._candidates or not self._perf.members.has_processes_left:
                stops.stop()
        at_end = self._stopping or not self._perf.members.has_processes_left
        yield from self._of_perf(self._perf.yield_until() if at_end else self._perf.yield_until(stops.flushed_ns))

    def _with_perf(self, batches: list[SampleBatch], until_ns: int) -> Iterator[SampleBatch]:
        yield from self._of_perf(self._perf.yield_until(until_ns))
        yield from batches

    @property
    def alive(self) -> list[int]:
        """The recorded processes that have not ended."""
        return self._perf.members.alive

    def end_now(self) -> None:
        """End the recording of both collectors: only samples until this moment are kept."""
        self._perf.maker.end_ns = time.monotonic_ns()
        self.stop()

    def learn(self, feedback: Feedback) -> None:
        source_id = feedback.batch.source_id
        if self._stops is not None and source_id == self._stops.source_id:
            self._stops.learn(feedback)
            self._candidates.learn_stopped(feedback)
        elif source_id == self._perf.source_id:
            self._learn_copied(feedback)

    def _learn_copied(self, feedback: Feedback) -> None:
        if self._by_depth:
            self._candidates.learn_copied(feedback)
            if self._candidates and self._stops is None:
                self._perf.leave_samples(self._candidates.elsewhere)
        self._perf.learn(self._candidates.others(feedback))

    def _close_stops(self) -> None:
        stops, self._stops = self._stops, None
        if stops is None:
            return
        self._past.add_collector(stops)
        stops.close()

    def threads(self) -> list[ThreadInfo]:
        return self._past.threads(self._perf, *([self._stops] if self._stops else []))

    def retire(self) -> None:
        self._past.retire()
        self._perf.retire()
        if self._stops is not None:
            self._stops.retire()

    def stats(self) -> CollectorStats:
        copied, stopped = self._perf.stats(), self._stopped()
        clock = copied if self._copied or not stopped.ticks else stopped
        return replace(
            stopped,
            ticks=clock.ticks,
            ticking_ns=clock.ticking_ns,
            skipped=copied.skipped + stopped.skipped,
            notes=self._notes(copied.notes, stopped.notes),
            accounts=copied.accounts,
        )

    def _slots(self) -> tuple[int, int]:
        """Return (kept, missed) sampling times of samples by stops so far."""
        stopped = self._stopped()
        return stopped.ticks, stopped.skipped

    def _stopped(self) -> CollectorStats:
        return joined(self._past.stats, self._stops.stats()) if self._stops is not None else self._past.stats

    def _notes(self, of_perf: tuple[str, ...], of_stops: tuple[str, ...]) -> tuple[str, ...]:
        why = self._by_image.why if self._by_image is not None else {}
        if self._copied or not why:
            in_part = ((text, _count(len(pids), "process")) for text, pids in why.items())
            notes = [*of_perf, *(said("by_stops_in_part", processes=count, why=text) for text, count in in_part)]
        else:
            notes = [*(said("by_stops", why=reason) for reason in why), *of_perf[1:]]
        return (*notes, *self._deep(), *of_stops)

    def _deep(self) -> tuple[str, ...]:
        threads, processes = self._candidates.threads, self._candidates.processes
        if not threads or not self._stopped().ticks:  # the last batch may be the first one that shows it
            return ()
        what = _count(threads, "thread")
        if processes:
            what += f", and then all threads of {'their process' if processes == 1 else 'their processes'},"
        return (said("stopped_for_depth", threads=what, stacks=TOO_LONG),)

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


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"
