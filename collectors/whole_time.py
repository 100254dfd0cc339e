"""All of a thread's time: on a processor as the kernel samples it, asleep as it is read from outside, never stopped."""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.collectors.perf_event import PerfCollector
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch


class WholeTime:
    """running: samples threads on processors; blocked: has the clock, samples threads that sleep, and only those.

    A blocked thread's batch comes after the samples of before: those do not count as what it slept on.
    """

    def __init__(self, running: PerfCollector, blocked: Collector) -> None:
        self._running = running
        self._blocked = blocked
        self._taught: Collector = blocked

    def batches(self) -> Iterator[SampleBatch]:
        for batch in self._blocked.batches():
            yield from self._drain()
            self._taught = self._blocked
            yield batch
        yield from self._drain(last=True)

    def _drain(self, last: bool = False) -> Iterator[SampleBatch]:
        self._taught = self._running
        yield from self._running.drain(last)

    def learn(self, feedback: Feedback) -> None:
        self._taught.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        known = {(info.pid, info.tid): info for info in (*self._running.threads(), *self._blocked.threads())}
        return [known[key] for key in sorted(known)]

    def stats(self) -> CollectorStats:
        running, blocked = self._running.stats(), self._blocked.stats()
        return CollectorStats(
            ticks=blocked.ticks,
            pauses=blocked.pauses,
            skipped=running.skipped + blocked.skipped,
            unchanged=blocked.unchanged,
            blocked=blocked.blocked,
            errors={},
            notes=tuple(dict.fromkeys((*running.notes, *blocked.notes))),
        )

    def stop(self) -> None:
        self._blocked.stop()

    def close(self) -> None:
        try:
            self._blocked.close()
        finally:
            self._running.close()
