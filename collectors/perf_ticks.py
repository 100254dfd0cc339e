"""How often the kernel really took samples: its own account of the time in which events counted, next to the records.

An event counts while its thread is on a processor (or all the time, if it stands on a processor), and makes a record
each 1/rate seconds of that. Both are read at the same moment, so that neither runs ahead.
"""

from __future__ import annotations

from pyprof.collectors.perf_events import EventSet
from pyprof.collectors.perf_records import Scan


class Ticks:
    """count: records of samples that found room. ticking_ns: the time in which they were due."""

    def __init__(self, rate_hz: float, user_only: bool) -> None:
        """user_only: no records are made of time in the kernel, though events count it; only what was lost is known."""
        self.count = self.ticking_ns = 0
        self._period_ns = round(1e9 / rate_hz)
        self._user_only = user_only
        self._closed_ns = 0

    def took(self, found: Scan, lost: int, events: EventSet | None) -> None:
        """Records have been read. lost: how many found no room, since the beginning."""
        self.count += sum(map(len, found.samples))
        if self._user_only:
            self.ticking_ns = (self.count + lost) * self._period_ns
        else:
            self.ticking_ns = self._closed_ns + (events.counted_ns() if events is not None else 0)

    def close(self, events: EventSet) -> None:
        """They count no more: others stand in their place."""
        self._closed_ns += events.counted_ns()
        events.close()
