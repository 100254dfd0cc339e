"""Samples that events of perf_events take.

The kernel takes a sample each 1/rate seconds of a thread's own time on a processor, so threads that do not run cost
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.cpu_accounts import LostSamples
from pyprof.collectors.perf.event_attributes import MOST_STACK
from pyprof.collectors.perf.event_set import FOREVER_NS
from pyprof.collectors.perf.kernel_collector import KernelRecords, KernelSamples
from pyprof.collectors.perf.random_sampling import Decimation, Starvation
from pyprof.collectors.perf.records import FORK
from pyprof.collectors.perf.stack_copy_size import AbsentPages
from pyprof.model.reason_lookup import make_note
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions

USER_ONLY = make_note("kernel_not_sampled")


class PerfSamples(KernelSamples):
    """The samples of perf_events in the rings of a recording's KernelRecords."""

    most_copy = MOST_STACK
    hold_s = 0.0
    young_wait_ns = 2_000_000_000
    silent_flushes = 1

    def __init__(self, records: KernelRecords, options: CollectOptions) -> None:
        self._records, self._events = records, records.events
        self._decimation = Decimation(options.stride)
        self._absent = AbsentPages(MOST_STACK)
        records.accounts.lost = self._count_lost
        judges = records.accounts.is_on and not self._events.scope.processors and options.thread is None
        self._starvation = Starvation(options.rate_hz) if judges else None

    def _count_lost(self) -> LostSamples:
        """Return the number of samples that were lost because perf's ring buffers were full.

        If events are on processors and no collector stops threads, all missing samples were lost in this way.
        """
        events = self._events
        return LostSamples(events.lost, events.scope.processors and self._records.accounts.is_alone)

    def longest_wait_ns(self) -> int:
        judged_ns = self._starvation.check_interval_ns if self._starvation is not None else FOREVER_NS
        return min(self._events.longest_wait_ns(), judged_ns)

    def read_batches(self, until_ns: int) -> Iterator[SampleBatch]:
        records, events = self._records, self._events
        records.accounts.note_offline(records.reopen_events())
        taken = records.take_samples(until_ns)
        records.accounts.read_times(until_ns)
        if until_ns == FOREVER_NS:
            events.close()
        for batch in map(self._decimation.thin_batch, taken.running):
            records.accounts.count_batch(batch)
            yield batch
        births = sum(record.kind == FORK for record in taken.scan.others)
        if self._starvation is not None and self._starvation.is_starved(births, *records.accounts.totals()):
            events.multiply(records.members.tracked.alive)
        records.release_samples(taken.scan)

    def learn(self, feedback: Feedback) -> None:
        self._events.learn(feedback)
        self._absent.learn(feedback)

    def stats(self) -> CollectorStats:
        ticks, event = self._events.ticks, self._events.scope.event
        notes = (make_note("by_events", event=event.name), *((USER_ONLY,) if event.user_only else ()))
        return CollectorStats(
            ticks=round(ticks.used), ticking_ns=ticks.ticking_ns, skipped=self._records.maker.lost, notes=notes
        )
