"""The stops of some threads and processes while another source samples all others, and totals of closed sources.

The kernel copies 64 KB of one stack. A thread with longer stacks, or with signal handlers on an alternate stack, is
stopped for its samples as long as it has such stacks. A process with frames that the other source cannot copy is
stopped until it executes another program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.combined.threads_to_stop import StopCandidates
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.loss_reason_texts import Note, join_pids, make_note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.thread_identity import ThreadKey

if TYPE_CHECKING:
    from pyprof.collectors.ptrace.collector import PtraceCollector


@dataclass
class ClosedSources:
    """The summed statistics and the threads of all sources that a recording has closed.

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
        """Forget threads of closed sources that had ended before the previous window was closed. The open source knows
        those that still run.
        """
        for key in self._leaving.take_gone(self._infos.keys()):
            del self._infos[key]

    def list_threads(self, running: Iterable[ThreadInfo]) -> list[ThreadInfo]:
        """Return the threads of the closed sources and those of running ones, which have later names."""
        known = self._infos | {info.key: info for info in running}
        return [known[key] for key in sorted(known)]


def sum_stats(first: CollectorStats, then: CollectorStats) -> CollectorStats:
    """Return the statistics of two sources that sampled one after the other, as if they were one source.

    The processor time that the kernel accounts to each process is counted from the begin of the first to the end of the
    second.
    """
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


OpenStops = Callable[[StopCandidates], "PtraceCollector"]
"""Function that opens the source that stops these threads, and raises its errors."""


class PartialStops:
    """The collector that stops some threads, while another source samples all others. It is opened when a thread needs
    stops, and closed when none does.

    Attributes:
        candidates: The threads and processes to stop.
        source: The collector, None while no thread needs stops.
    """

    def __init__(self, open_stops: OpenStops) -> None:
        self.candidates = StopCandidates()
        self.source: PtraceCollector | None = None
        self._open_stops = open_stops
        self._past = ClosedSources()

    def open_source(self) -> PtraceCollector | None:
        """Open the collector that stops the candidates, and return it. Return None if that fails. If no candidate may
        be stopped, release all of them.
        """
        try:
            self.source = self._open_stops(self.candidates)
        except NoSuchProcess:
            return None
        except (PyprofError, OSError):
            self.candidates.refuse_all()
            return None
        self.source.acknowledges = False
        return self.source

    def note_batch(self, batch: SampleBatch) -> None:
        """Note a batch of samples by stops, and release threads that may not be stopped or have ended."""
        assert self.source is not None
        self.candidates.begun(batch)
        for tid in self.source.refused:
            self.candidates.refuse(tid)

    def learn(self, feedback: Feedback) -> bool:
        """Pass feedback to the collector that stops threads, if it is about its samples. Return False if it is not."""
        if self.source is None or feedback.batch.source_id != self.source.source_id:
            return False
        self.source.learn(feedback)
        self.candidates.learn_stopped(feedback)
        return True

    def list_threads(self) -> list[ThreadInfo]:
        return self._past.list_threads(self.source.threads() if self.source is not None else ())

    def retire(self) -> None:
        self._past.retire()
        if self.source is not None:
            self.source.retire()

    def stats(self) -> CollectorStats:
        return sum_stats(self._past.stats, self.source.stats()) if self.source is not None else self._past.stats

    def count_slots(self) -> tuple[int, int]:
        """Return the numbers of (kept, missed) sampling times so far."""
        stats = self.stats()
        return stats.ticks, stats.skipped

    def stop(self) -> None:
        if self.source is not None:
            self.source.stop()

    def close(self) -> None:
        stops, self.source = self.source, None
        if stops is not None:
            self._past.add_source(stops.stats(), stops.threads())
            stops.close()

    def describe(self, of_others: tuple[Note, ...], why: Mapping[str, Iterable[int]], alone: bool) -> tuple[Note, ...]:
        """Return the notes for the summary about the stops and about the other source.

        Args:
            of_others: Notes of the other source.
            why: Processes by the reason for which they were stopped.
            alone: True if the other source has no samples.
        """
        if alone and why:
            by_stops = (make_note("by_stops", why=reason, pids=join_pids(pids)) for reason, pids in why.items())
            notes = [*by_stops, *of_others[1:]]
        else:
            known = [(reason, list(pids)) for reason, pids in why.items()]
            in_part = (
                make_note("by_stops_in_part", processes=len(pids), why=reason, pids=join_pids(pids))
                for reason, pids in known
            )
            notes = [*of_others, *in_part]
        stopped = self.stats()
        if self.candidates.threads and stopped.ticks:  # the last batch may be the first one that shows it
            notes.append(self._describe_threads())
        return (*notes, *stopped.notes)

    def _describe_threads(self) -> Note:
        threads, processes = self.candidates.threads, self.candidates.processes
        if not processes:
            return make_note("threads_stopped_for_depth", threads=threads)
        return make_note("processes_stopped_for_depth", threads=threads, processes=processes)
