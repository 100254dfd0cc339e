"""One collector until a process runs an interpreter, another one from then on.

The second one is opened while the first one still samples, which then gives what it has up to that moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.collectors.closed_collectors import ClosedCollectors, joined
from pyprof.collectors.cpu_accounts import Account
from pyprof.collectors.hybrid.by_image import ByImage, NeedsStops
from pyprof.collectors.hybrid.collector import HybridCollector
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch
from pyprof.records import replace

Successor = Callable[[list[int], str], Collector]
"""(pids, why) -> the collector of these processes. Raises what collectors raise."""


class UntilInterpreter:
    """needs: as ByImage has it, of a process. first: opens the first collector, which is to stop the processes that
    ByImage names; then: the second one.
    """

    def __init__(self, needs: NeedsStops, first: Callable[[ByImage], HybridCollector], then: Successor) -> None:
        self._needs = needs
        self._open = then
        self._then: Collector | None = None
        self._refused = False
        self._past = ClosedCollectors()
        self._accounts: Mapping[int, Account] = {}
        self._began_ns = time.monotonic_ns()
        self._for_ns = 0
        self._stopping = False
        self._first = first(ByImage(self._asked))
        self._now: Collector = self._first

    def _asked(self, pid: int) -> str | None:
        """Of each process that comes, and after each exec. None: it has an interpreter that has not begun."""
        reason = self._needs(pid)
        if reason == "" or self._then is not None:
            return ""
        alive = self._first.alive
        if self._refused or not alive:
            return reason
        try:
            self._then = self._open(alive, reason or "")
        except NoSuchProcess:
            return reason
        except PyprofError:
            self._refused = True
            return reason
        self._first.end_now()
        return ""

    def batches(self) -> Iterator[SampleBatch]:
        yield from self._first.batches()
        if self._then is None or self._stopping:
            return
        self._for_ns = time.monotonic_ns() - self._began_ns
        self._past.add(self._first)
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
        notes = now.notes
        if before.ticks:
            notes = (*notes, f"Until an interpreter was found, perf_events recorded: {self._for_ns / 1e9:.1f} s")
        return replace(joined(before, now), notes=notes, accounts=_together(self._accounts, now.accounts))

    def stop(self) -> None:
        self._stopping = True
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
    """Accounts of one period and the next."""
    found = dict(first)
    for root, account in then.items():
        known = found.get(root, Account(account.name, 0, 0, 0))
        found[root] = Account(
            account.name,
            known.spent_ns + account.spent_ns,
            known.due_ns + account.due_ns,
            known.seen_ns + account.seen_ns,
            known.chance_ns + account.chance_ns,
        )
    return found
