"""The totals of sources that were closed before the end of the recording: their statistics and their threads."""

from __future__ import annotations

from collections.abc import Iterable

from pyprof.collectors.base import CollectorStats
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.model.profile import ThreadInfo
from pyprof.model.thread_keys import ThreadKey
from pyprof.records import dataclass, field


@dataclass
class ClosedSources:
    """The totals of all sources that were added before they were closed.

    Attributes:
        stats: Sums of their statistics.
    """

    stats: CollectorStats = field(default_factory=CollectorStats)
    _infos: dict[ThreadKey, ThreadInfo] = field(default_factory=dict)
    _leaving: DelayedRemoval[ThreadKey] = field(default_factory=DelayedRemoval)

    def add_source(self, stats: CollectorStats, threads: Iterable[ThreadInfo]) -> None:
        """Add the statistics and threads of a source that is closed now."""
        self.stats = sum_stats(self.stats, stats)
        self._infos |= {info.key: info for info in threads}

    def retire(self) -> None:
        """Forget threads that ended before the previous window was closed. Running sources know the others."""
        for key in self._leaving.take_gone(self._infos.keys()):
            del self._infos[key]

    def list_threads(self, running: Iterable[ThreadInfo]) -> list[ThreadInfo]:
        """Return the threads of the closed sources and those of running ones, which have later names."""
        known = self._infos | {info.key: info for info in running}
        return [known[key] for key in sorted(known)]


def sum_stats(first: CollectorStats, then: CollectorStats) -> CollectorStats:
    """Return the sums of two sources' statistics, with the accounts of each process over both times."""
    later = {
        root: first.accounts[root].followed_by(account) if root in first.accounts else account
        for root, account in then.accounts.items()
    }
    return CollectorStats(
        ticks=first.ticks + then.ticks,
        ticking_ns=first.ticking_ns + then.ticking_ns,
        pauses=first.pauses + then.pauses,
        skipped=first.skipped + then.skipped,
        unchanged=first.unchanged + then.unchanged,
        blocked=first.blocked + then.blocked,
        notes=tuple(dict.fromkeys((*first.notes, *then.notes))),
        accounts={**first.accounts, **later},
    )
