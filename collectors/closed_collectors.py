"""Statistics and threads of collectors that are closed already."""

from __future__ import annotations

from pyprof.collectors.base import Collector, CollectorStats
from pyprof.model.profile import ThreadInfo
from pyprof.records import dataclass, field


@dataclass
class ClosedCollectors:
    """Of all that were added."""

    stats: CollectorStats = field(default_factory=CollectorStats)
    _infos: dict[tuple[int, int], ThreadInfo] = field(default_factory=dict)

    def add(self, collector: Collector) -> None:
        self._infos |= _keyed(collector)
        self.stats = joined(self.stats, collector.stats())

    def threads(self, *now: Collector) -> list[ThreadInfo]:
        """Theirs, and those of collectors that still run."""
        known = dict(self._infos)
        for collector in now:
            known |= _keyed(collector)
        return [known[key] for key in sorted(known)]


def joined(first: CollectorStats, then: CollectorStats) -> CollectorStats:
    """Of two collectors together."""
    return CollectorStats(
        ticks=first.ticks + then.ticks,
        ticking_ns=first.ticking_ns + then.ticking_ns,
        pauses=first.pauses + then.pauses,
        skipped=first.skipped + then.skipped,
        unchanged=first.unchanged + then.unchanged,
        blocked=first.blocked + then.blocked,
        notes=tuple(dict.fromkeys((*first.notes, *then.notes))),
    )


def _keyed(collector: Collector) -> dict[tuple[int, int], ThreadInfo]:
    return {(info.pid, info.tid): info for info in collector.threads()}
