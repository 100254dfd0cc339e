"""Stops until they miss too much because threads or processes end too soon, and perf_events from then on.

This is for users who may not see time in the kernel by perf_events. Stops see it, so they are better as long as they
see most of what runs. A process of a millisecond has mostly ended before it can be stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from pyprof.collectors.base import Collector
from pyprof.collectors.hybrid.by_image import NeedsStops
from pyprof.collectors.hybrid.succession import Succession
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.model.reasons import said
from pyprof.model.sample import SampleBatch

_MUCH, _SIGMAS = 0.2, 2
_UNSURE_NS = 100_000_000
"""Processor time in nanoseconds that may be missed in addition, because stops first have to learn which threads they
sample.
"""
_WINDOW_NS = 2_000_000_000
"""Processor time in nanoseconds after which a new decision between stops and perf_events begins."""

Successor = Callable[[tuple[int, ...]], Collector]
"""Function that opens the second collector for these processes and their children and raises its errors."""


class Missed:
    """A check whether much processor time has no samples because threads or processes are short, and not by chance."""

    def __init__(self, rate_hz: float, births: int) -> None:
        self._period_ns = 1e9 / rate_hz
        self._due_ns = self._seen_ns = 0
        self._births = births

    def much(self, births: int, due_ns: int, seen_ns: int) -> bool:
        """Return True if too much processor time has no samples.

        Args:
            births: Number of threads and processes that started.
            due_ns: Time that samples should stand for.
            seen_ns: Time that they stand for. All three count from the beginning.
        """
        due, seen, born = due_ns - self._due_ns, seen_ns - self._seen_ns, births - self._births
        if due <= 0:
            return False
        least = max(_MUCH * due + _UNSURE_NS, _SIGMAS * math.sqrt(due * self._period_ns))
        if due > _WINDOW_NS:
            self._due_ns, self._seen_ns, self._births = due_ns, seen_ns, births
        return least < due - seen < born * self._period_ns


class UntilShortLives(Succession):
    """A collector that changes from stops to perf_events when threads or processes end too soon for stops.

    Args:
        stops: The collector that samples until it misses too much.
        rate_hz: Sampling rate in Hz.
        needs: See NeedsStops. As long as a process needs stops, they are kept.
        then: Opens the second collector.
    """

    def __init__(self, stops: PtraceCollector, rate_hz: float, needs: NeedsStops, then: Successor) -> None:
        super().__init__(stops)
        self._stops = stops
        self._missed = Missed(rate_hz, stops.totals()[0])
        self._needs = needs
        self._open = then
        self._refused = False

    def batches(self) -> Iterator[SampleBatch]:
        for batch in super().batches():
            yield batch
            if not (self.followed or self._refused) and self._missed.much(*self._stops.totals()):
                self._turn()

    def _turn(self) -> None:
        heads = self._stops.heads
        if not heads or any(self._needs(pid) != "" for pid in self._stops.alive):
            return
        try:
            self.follow(self._open(heads))
        except NoSuchProcess:
            return
        except PyprofError:
            self._refused = True
            return
        self._stops.stop()

    def make_notes(self, notes: tuple[str, ...], for_s: float) -> tuple[str, ...]:
        from pyprof.collectors.perf.collector import NEVER_STOPPED

        before = said("until_short_lives", seconds=f"{for_s:.1f}")
        return (*(note.removesuffix(NEVER_STOPPED) for note in notes), before)
