"""A collector that another one replaces at some moment of the recording.

The second one is opened while the first one still samples. The first one then yields what it has up to that moment.
ClosedCollectors keeps the statistics and threads of the first one after that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.collectors.cpu_accounts import Account
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch
from pyprof.model.thread_keys import ThreadKey
from pyprof.records import dataclass, field, replace


class Succession:
    """A collector that samples with a first collector until follow() is called, and with a second one after that. The
    caller of follow() ends the first one.
    """

    def __init__(self, first: Collector) -> None:
        self.stopping = False
        self._now = self._first = first
        self._then: Collector | None = None
        self._past = ClosedCollectors()
        self._accounts: Mapping[int, Account] = {}
        self._began_ns = time.monotonic_ns()
        self._for_ns = 0

    @property
    def followed(self) -> bool:
        """True if a second collector has replaced the first one."""
        return self._then is not None

    def follow(self, then: Collector) -> None:
        """Set the second collector, which samples after the last batch of the first one."""
        self._then = then

    def make_notes(self, notes: tuple[str, ...], for_s: float) -> tuple[str, ...]:
        """Return notes for the summary about two consecutive collectors.

        Args:
            notes: Notes of the second collector.
            for_s: Time for which the first one sampled, in seconds.
        """
        raise NotImplementedError

    def batches(self) -> Iterator[SampleBatch]:
        yield from self._first.batches()
        if self._then is None or self.stopping:
            return
        self._for_ns = time.monotonic_ns() - self._began_ns
        self._past.add_collector(self._first)
        self._accounts = self._first.stats().accounts
        self._now = self._then
        self._first.close()
        yield from self._now.batches()

    def learn(self, feedback: Feedback) -> None:
        self._now.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        return self._past.threads(self._now)

    def retire(self) -> None:
        self._past.retire()
        self._now.retire()

    def stats(self) -> CollectorStats:
        now = self._now.stats()
        if self._now is self._first:
            return now
        before = self._past.stats
        return replace(
            joined(before, now),
            notes=self.make_notes(now.notes, self._for_ns / 1e9) if before.ticks else now.notes,
            accounts=_together(self._accounts, now.accounts),
        )

    def stop(self) -> None:
        self.stopping = True
        self._first.stop()
        if self._then is not None:
            self._then.stop()

    def close(self) -> None:
        try:
            self._first.close()
        finally:
            if self._then is not None:
                self._then.close()


def _together(first: Mapping[int, Account], then: Mapping[int, Account]) -> dict[int, Account]:
    """Return the processor-time accounts of two consecutive periods."""
    later = {root: first[root].followed_by(account) if root in first else account for root, account in then.items()}
    return {**first, **later}


@dataclass
class ClosedCollectors:
    """Totals of the statistics of all collectors that were added before they were closed."""

    stats: CollectorStats = field(default_factory=CollectorStats)
    _infos: dict[ThreadKey, ThreadInfo] = field(default_factory=dict)
    _leaving: DelayedRemoval[ThreadKey] = field(default_factory=DelayedRemoval)

    def add_collector(self, collector: Collector) -> None:
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
