"""Sampling rate that the kernel reached: the time in which events counted, next to the number of records.

An event counts while its thread is on a processor, and makes a record each 1/rate seconds of that. Both are read at the
same moment.
"""

from __future__ import annotations

from pyprof.collectors.perf.event_set import EventSet
from pyprof.collectors.perf.records import Scan
from pyprof.handover import Stride


class Ticks:
    """used: records of samples that found room, as far as a stride lets them be used (of all processes, where events
    stand on processors: it is the same part of each). ticking_ns: the time in which they were due.

    by_records: no records are made of some of the time that events count (in the kernel, where that is left out; of
    idle processors, where events stand on those, at least at first): only what was lost is known.
    """

    def __init__(self, rate_hz: float, by_records: bool, stride: Stride) -> None:
        self.used, self.ticking_ns = 0.0, 0
        self._stride = stride
        self._by_records = by_records
        self._period_ns = round(1e9 / rate_hz)
        self._lost = self._closed_ns = 0

    def took(self, found: Scan, lost: int, events: EventSet | None) -> None:
        """Records have been read. lost: how many found no room, since the beginning."""
        taken = sum(map(len, found.samples))
        self.used += taken / self._stride.every
        if self._by_records:
            self._closed_ns += (taken + lost - self._lost) * self._period_ns
            self.ticking_ns = self._closed_ns
        else:
            self.ticking_ns = self._closed_ns + (events.counted_ns() if events is not None else 0)
        self._lost = lost

    def close(self, events: EventSet) -> None:
        """They count no more: others stand in their place."""
        if not self._by_records:
            self._closed_ns += events.counted_ns()
        events.close()
