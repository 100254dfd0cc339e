"""All processes without stops, or all of them by stops as long as one of them runs a program that needs stops.

This is for recordings of wall-clock time, in which the time of one thread cannot come from two collectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.collectors.hybrid.by_image import ByImage
from pyprof.collectors.hybrid.succession import ClosedCollectors, joined
from pyprof.errors import PyprofError
from pyprof.model.profile import ThreadInfo
from pyprof.model.reasons import said
from pyprof.model.sample import SampleBatch
from pyprof.records import replace

_CALM_NS = 2_000_000_000
"""Time in nanoseconds for which no process needed stops before the collector that stops threads is closed."""


class CollectorPart(Collector, Protocol):
    """The protocol of a collector that reports its processes.

    Attributes:
        source_ids: Identifiers of its batches.
        alive: Processes that have not ended.
    """

    @property
    def source_ids(self) -> frozenset[int]: ...

    def take_new_processes(self) -> set[int]: ...

    @property
    def alive(self) -> list[int]: ...


Opener = Callable[[list[int], bool], CollectorPart]
"""Function (pids, whether it is the first collector) that opens the collector and raises its errors."""


class WholeProcessCollector:
    """A collector that switches between one without stops and one with stops, always for all processes.

    Args:
        whole: Opens the collector without stops.
        stopping: Opens the collector that uses stops.
        by_image: Decides which programs need stops.
        pids: The processes.
        launched: True if the program has not started yet.
    """

    def __init__(
        self, open_without_stops: Opener, stopping: Opener, by_image: ByImage, pids: tuple[int, ...], launched: bool
    ) -> None:
        self._openers = {False: open_without_stops, True: stopping}
        self._by_image = by_image
        self._past = ClosedCollectors()
        self._stopping = False
        self._calm_ns = 0
        self._since_ns = time.monotonic_ns()
        self._ns = {False: 0, True: 0}
        self._notes: tuple[str, ...] = ()
        if not launched:
            by_image.changed(pids)
            by_image.check_due(all_of_them=True)
        self._by_stops = bool(by_image.reasons)
        self._now = self._openers[self._by_stops](list(pids), True)

    def batches(self) -> Iterator[SampleBatch]:
        self._by_image.changed(self._now.take_new_processes())
        self._by_image.check_due(all_of_them=True)
        while True:
            if self._stopping:
                self._now.stop()
            turned = False
            if self._by_stops == self._wanted():
                for batch in self._now.batches():
                    yield batch
                    turned = turned or self._is_turn()
                    if turned:
                        self._now.stop()
            alive = self._now.alive
            if self._stopping or (not turned and self._by_stops == self._wanted()) or not alive:
                return
            try:
                then = self._openers[not self._by_stops](alive, False)
            except PyprofError:
                return
            before, self._now = self._now, then
            self._end(before)
            self._by_stops = not self._by_stops

    def _end(self, before: CollectorPart) -> None:
        now_ns = time.monotonic_ns()
        self._ns[self._by_stops] += now_ns - self._since_ns
        self._since_ns = now_ns
        self._past.add_collector(before)
        self._notes += before.stats().notes if self._by_stops else ()
        before.close()

    def _wanted(self) -> bool:
        """Return True if a process needs stops now."""
        if self._by_image.reasons:
            self._calm_ns = time.monotonic_ns() + _CALM_NS
            return True
        return self._by_stops and time.monotonic_ns() < self._calm_ns

    def _is_turn(self) -> bool:
        self._by_image.changed(self._now.take_new_processes())
        self._by_image.check_due()
        self._by_image.forget(set(self._now.alive).__contains__)
        return self._wanted() != self._by_stops

    def learn(self, feedback: Feedback) -> None:
        if feedback.batch.source_id in self._now.source_ids:  # otherwise it is of a closed collector
            self._now.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        return self._past.threads(self._now)

    def retire(self) -> None:
        self._past.retire()
        self._now.retire()

    def stats(self) -> CollectorStats:
        found = joined(self._past.stats, self._now.stats())
        if not self._by_stops and not self._ns[True]:
            return found
        notes = [said("by_stops", why=reason) for reason in self._by_image.why]
        if without_ns := self._ns[False]:
            notes.append(said("no_stops_needed", seconds=f"{without_ns / 1e9:.1f}"))
        of_stops = self._notes + (self._now.stats().notes if self._by_stops else ())
        return replace(found, notes=(*notes, *dict.fromkeys(of_stops)))

    def stop(self) -> None:
        self._stopping = True
        self._now.stop()

    def close(self) -> None:
        self._now.close()
