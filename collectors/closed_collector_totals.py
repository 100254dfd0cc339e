"""Statistics and threads of collectors that are already closed."""

from __future__ import annotations

from pyprof.collectors.base import Collector, CollectorStats
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.model.profile import ThreadInfo
from pyprof.model.thread_keys import ThreadKey
from pyprof.records import dataclass, field


@dataclass
class ClosedCollectors:
    """Totals of the statistics of all collectors that were added before they were closed."""

    stats: CollectorStats = field(default_factory=CollectorStats)
    _infos: dict[ThreadKey, ThreadInfo] = field(default_factory=dict)
    _leaving: DelayedRemoval[ThreadKey] = field(default_factory=DelayedRemoval)

    def add(self, collector: Collector) -> None:
        self._infos |= _keyed(collector)
        self.stats = joined(self.stats, collector.stats())

    def retire(self) -> None:
        """Forget threads of closed collectors that ended before the previous window was closed. Running collectors know
        the others.
        """
        for key in self._leaving.take_gone(self._infos.keys()):
            del self._infos[key]

    def threads(self, *now: Collector) -> list[ThreadInfo]:
        """Return the threads of all collectors of a recording: closed ones, and those that still run."""
        known = dict(self._infos)
        for collector in now:
            known |= _keyed(collector)
        return [known[key] for key in sorted(known)]


def joined(first: CollectorStats, then: CollectorStats) -> CollectorStats:
    """Return the sums of two collectors' statistics."""
    return CollectorStats(
        ticks=first.ticks + then.ticks,
        ticking_ns=first.ticking_ns + then.ticking_ns,
        pauses=first.pauses + then.pauses,
        skipped=first.skipped + then.skipped,
        unchanged=first.unchanged + then.unchanged,
        blocked=first.blocked + then.blocked,
        notes=tuple(dict.fromkeys((*first.notes, *then.notes))),
    )


def _keyed(collector: Collector) -> dict[ThreadKey, ThreadInfo]:
    return {info.key: info for info in collector.threads()}
