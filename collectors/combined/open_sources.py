"""The sources of a recording that are open now: its main source (BPF, perf_events or ptrace stops), and stops
of single threads and processes.

A process that lives for a millisecond has mostly ended before it can be stopped. perf_events sample it, but
users who may not see time in the kernel by perf_events lose that time. So stops are better as long as they
see most of what runs.

The kernel copies 64 KB of one stack. A thread with longer stacks, or with signal handlers on an alternate
stack, is stopped for its samples as long as it has such stacks. A process with frames that the main source
cannot copy is stopped until it executes another program. ClosedSources has totals of the sources that were
closed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.collectors.batch_builder import split_at_flushes
from pyprof.collectors.combined.planner import ANY_PID, Planner
from pyprof.collectors.combined.threads_to_stop import ByImage, StopCandidates
from pyprof.collectors.cpu_time_accounting import TotalTimes
from pyprof.collectors.sampling_source_plan import BPF, PERF, PTRACE, Choice, ProcessFacts, UncopiedStack
from pyprof.collectors.thread_start_times import DelayedRemoval
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.loss_reason_texts import Note, join_pids, make_note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.thread_identity import ThreadKey

if TYPE_CHECKING:
    from pyprof.collectors.bpf.on_cpu_samples import BpfSamples
    from pyprof.collectors.perf.kernel_collector import KernelCollector
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
        """Add the final statistics and threads of a source that is being closed."""
        self.stats = sum_stats(self.stats, stats)
        self._infos |= {info.key: info for info in threads}

    def retire(self) -> None:
        """Forget threads of closed sources that had ended before the previous window was closed. The open
        source knows threads that still run.
        """
        for key in self._leaving.take_gone(self._infos.keys()):
            del self._infos[key]

    def list_threads(self, running: Iterable[ThreadInfo]) -> list[ThreadInfo]:
        """Return the threads of the closed sources and the given threads of running sources. If a thread is
        in both, the running source has its latest name.
        """
        known = self._infos | {info.key: info for info in running}
        return [known[key] for key in sorted(known)]


def sum_stats(first: CollectorStats, then: CollectorStats) -> CollectorStats:
    """Return the statistics of two sources that sampled one after the other, as if they were one source.

    The processor time that the kernel accounts to each process is counted from the beginning of the first
    source to the end of the second.
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
"""The type of a function that opens the ptrace collector which stops the given threads. Its errors are passed on."""


class PartialStops:
    """The collector that samples some threads by ptrace stops, while another source samples all others. It is
    opened when a thread needs stops, and closed when none does.

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
        """Open the collector that stops the candidates, and return it. Return None if that fails: if no
        process is left, or after releasing all candidates because none may be stopped.
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
        """Note the threads in a batch of samples by stops, and release threads that may not be stopped."""
        assert self.source is not None
        self.candidates.begun(batch)
        for tid in self.source.refused:
            self.candidates.refuse(tid)

    def learn(self, feedback: Feedback) -> bool:
        """Pass feedback to the collector that stops threads, if that collector yielded the batch. Return
        False if it did not.
        """
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
        """Return the numbers of (kept, missed) sampling times since the first stop of a thread."""
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
        """Return the notes for the summary about the stops and about the main source.

        Args:
            of_others: Notes of the main source.
            why: Pids of the stopped processes, by the reason for which they were stopped.
            alone: True if the main source has no samples.
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


_MUCH, _SIGMAS = 0.2, 2
_UNSURE_NS = 100_000_000
"""Processor time in nanoseconds that stops may miss in addition to the tolerated share, because they first
have to learn which threads they sample.
"""
_WINDOW_NS = 2_000_000_000
"""Processor time in nanoseconds after which a new measurement of the missed time begins."""


class MissedTime:
    """A repeated measurement of the processor time that has no samples. If stops miss much of it, the
    recording changes to perf_events.
    """

    def __init__(self, rate_hz: float, births: int) -> None:
        self._period_ns = 1e9 / rate_hz
        self._before = TotalTimes(0, 0, 0, 0)
        self._births = births

    def is_much(self, births: int, totals: TotalTimes) -> bool:
        """Return True if a significantly large part of the processor time has no samples because threads and
        processes end too soon.

        The kernel accounts the time of processes that have ended. It holds however seldom a sampler without a
        processor looks. Threads have no such account: the number of those that started says what they may have spent.

        Args:
            births: Number of threads and processes that started since the beginning of the recording.
            totals: Sums of processor time since then.
        """
        since = TotalTimes(*(now - before for now, before in zip(totals, self._before, strict=True)))
        born = births - self._births
        if since.spent_ns > _WINDOW_NS:
            self._before, self._births = totals, births
        missed_ns, unread_ns = since.spent_ns - since.seen_ns, since.unread_ns
        if min(missed_ns, unread_ns) > self._least_ns(since.spent_ns):
            return True
        return self._least_ns(since.due_ns) < since.due_ns - since.seen_ns < born * self._period_ns

    def _least_ns(self, of_ns: int) -> float:
        """Return the missed part of a processor time above which it is much, in nanoseconds."""
        return max(_MUCH * of_ns + _UNSURE_NS, _SIGMAS * math.sqrt(max(of_ns, 0) * self._period_ns))


class MainSource(Collector, Protocol):
    """The protocol of a source that can sample a whole recording.

    Attributes:
        source_ids: Identifiers of the batches that it yields.
        alive: Pids of its processes that have not ended.
    """

    @property
    def source_ids(self) -> frozenset[int]: ...

    @property
    def alive(self) -> list[int]: ...

    def take_new_processes(self) -> set[int]:
        """Return the pids of processes that appeared or called exec since the last call."""
        ...

    def end_now(self) -> None:
        """End the iteration of batches() with the samples until this moment, because another source becomes
        the main source.
        """
        ...


Follow = Callable[[Choice, Sequence[int]], bool]
"""The type of a function (choice, pids) that opens the collector of a plan's choice for these processes: BPF,
perf_events or ptrace. It does nothing if that collector is open. It returns True if the collector that samples now
then ends.
"""


class OpenSources:
    """The open collectors of a recording: the main source that samples now, and the ptrace stops of threads
    and processes that it leaves out.

    Attributes:
        choice: The plan's choice of the main source.
        main: The main source.
        began_ns: Monotonic time at which the main source began.
        partial: The stops of threads and processes that the main source leaves out.
        missed: The processor time that stops miss as main source, None if no other source could replace them.
    """

    def __init__(
        self,
        planner: Planner,
        choice: Choice,
        main: MainSource,
        open_stops: OpenStops,
        follow: Follow,
        launched: bool = False,
    ) -> None:
        """Begin to sample by the main source that the plan has chosen.

        Args:
            planner: The facts and the plan of the recording.
            choice: The plan's choice of the main source.
            main: The main source.
            open_stops: Function that opens the collector which stops some threads.
            follow: Function that opens the next main source.
            launched: True if the program has not started yet.
        """
        planner.note_source(choice.source)
        self.choice, self.main, self.began_ns = choice, main, time.monotonic_ns()
        self._planner, self._follow, self._launched = planner, follow, launched
        self._stopping = self._has_successor = self._copied = False
        has_records = choice.source == BPF or (choice.source == PERF and not planner.options.idle)
        self._kernel = cast("KernelCollector", main) if has_records else None
        self._images = ByImage(self.find_stop_reason)
        self.partial = PartialStops(open_stops)
        if self._kernel is not None:
            self.partial.candidates = StopCandidates(self._kernel.samples.most_copy)
            self._kernel.records.accounts.slots = self.partial.count_slots
        self.missed: MissedTime | None = None
        if choice.source == PTRACE and planner.may_follow_short_lives():
            self.missed = MissedTime(planner.options.rate_hz, self._stops.totals()[0])

    def batches(self) -> Iterator[SampleBatch]:
        """Yield the batches of all open sources until the main source ends."""
        return self._sample() if self._kernel is None else self._sample_with_stops(self._kernel)

    def _sample(self) -> Iterator[SampleBatch]:
        """Yield the batches of a main source that samples all threads."""
        watches = self._planner.may_depend_on_programs()
        if watches:
            self._watch(first=True)
        for batch in self.main.batches():
            yield batch
            if watches:
                self._watch()
            self._check_short_lives()

    def _sample_with_stops(self, main: KernelCollector) -> Iterator[SampleBatch]:
        """Yield the batches of a main source that reads kernel records, and the batches of the threads that are sampled
        by stops.
        """
        of_main = main.batches()  # its news begin now, because the first checks of programs take a while
        candidates = self.partial.candidates
        if self._planner.may_depend_on_programs():
            self._watch(first=True)
            main.records.waiting.watch = candidates.watch = self._watch
        while True:
            if not candidates:
                yield from self._note_copies(of_main)
                of_main = main.batches()
            if self._is_over(main) or not candidates:
                return
            candidates.forget_ended()
            if not candidates:
                continue
            if not candidates.long and self.follow_second_stack():
                yield from self._note_copies(main.yield_until())
                return
            stops = self.partial.open_source()
            if stops is None:
                continue
            try:
                yield from self._sample_by_both(main, stops)
            finally:
                self.partial.close()
            if self._is_over(main):
                return

    def _is_over(self, main: KernelCollector) -> bool:
        return self._stopping or self._has_successor or not main.records.members.has_processes_left

    def _note_copies(self, batches: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
        for batch in batches:
            self._copied = self._copied or len(batch) > 0
            yield batch

    def _sample_by_both(self, main: KernelCollector, stops: PtraceCollector) -> Iterator[SampleBatch]:
        """Yield the batches of the threads that are sampled by stops, and between them those of the main source up to
        the same times.
        """
        candidates = self.partial.candidates

        def complete(batches: list[SampleBatch], until_ns: int) -> Iterator[SampleBatch]:
            yield from self._note_copies(main.yield_until(until_ns))
            yield from batches

        if self._stopping:
            stops.stop()
        flushed_ns = stops.flushed_ns
        for batch in stops.batches():
            self.partial.note_batch(batch)
            main.records.accounts.count_batch(batch)
            if stops.flushed_ns == flushed_ns:  # an empty batch, but rings fill meanwhile
                yield from complete([batch], main.records.handover.bound(time.monotonic_ns()))
            else:
                flushed_ns = stops.flushed_ns
                yield from split_at_flushes(main.records.handover, [batch], flushed_ns, complete)
            candidates.forget_ended()
            if not candidates or not main.records.members.has_processes_left:
                stops.stop()
        until_ns = () if self._is_over(main) else (stops.flushed_ns,)
        yield from self._note_copies(main.yield_until(*until_ns))

    def _watch(self, first: bool = False) -> int | None:
        """Check whether the programs that processes run need another source, such as stops. Return None if
        threads must be stopped now, else the time until the next check in ns.
        """
        candidates, kernel = self.partial.candidates, self._kernel
        self._images.changed(self.main.take_new_processes())
        for pid in self._images.check_due(all_of_them=first, is_over=lambda: self._stopping):
            if kernel is None:
                continue
            if pid in self._images.reasons and kernel.records.members.follows_children(pid):
                candidates.choose_image(pid, from_start=first and not self._launched)
            else:
                candidates.release_image(pid)
        self._leave_samples()
        return None if candidates else self._images.wait_ns()

    def _leave_samples(self) -> None:
        """Make the main source drop the samples of all threads that are sampled by stops from now on."""
        if self._kernel is not None and self.partial.candidates and self.partial.source is None:
            self._kernel.leave_samples(self.partial.candidates.elsewhere)

    def find_stop_reason(self, pid: int) -> str | None:
        """Return the reason why a process must be stopped for its samples (Choice.stop_reason), "" if it need
        not, None if that is unknown. If the plan requires it, the main source is changed first.
        """
        if self._has_successor:
            return ""
        if self.choice.source == BPF and self._kernel is not None:
            unreadable = cast("BpfSamples", self._kernel.samples).source.processes.find_interpreter(pid)
            process = ProcessFacts(unreadable=unreadable)
        else:
            process = self._planner.inspect(pid)
        choice = self._planner.suppose(process).default
        if self._follow(choice, self.main.alive):
            return ""
        if choice.source != self.choice.source and choice.source not in self._planner.facts.refused:
            return None
        return self._planner.suppose(process).processes[ANY_PID].stop_reason

    def follow_second_stack(self) -> bool:
        """Change the main source if the plan requires that for threads that run on two stacks (such as an
        alternate signal stack). Return True if it was changed.
        """
        second = ProcessFacts(stacks={ANY_PID: UncopiedStack.SECOND})
        return self._follow(self._planner.suppose(second).default, self.main.alive)

    def _check_short_lives(self) -> None:
        """Change the main source from stops to another one, if stops miss much of the processor time and no
        process needs stops.
        """
        if self.missed is None or self._has_successor or not self.missed.is_much(*self._stops.totals()):
            return
        planner = self._planner
        planner.facts = replace(planner.facts, short_lives=True)
        choice = planner.make_plan().default
        needless = choice.source != PTRACE and all(planner.choose(pid).stop_reason == "" for pid in self.main.alive)
        if not (needless and self._follow(choice, self._stops.heads)):
            planner.facts = replace(planner.facts, short_lives=False)

    @property
    def _stops(self) -> PtraceCollector:
        """The main source, which the caller knows to be one that samples by stops."""
        return cast("PtraceCollector", self.main)

    def learn(self, feedback: Feedback) -> None:
        """Pass the feedback about an unwound batch to the collector that made the batch. Feedback about a closed
        collector's batch is dropped.
        """
        kernel, candidates = self._kernel, self.partial.candidates
        if self.partial.learn(feedback) or feedback.batch.source_id not in self.main.source_ids:
            return
        if kernel is None:
            self.main.learn(feedback)
            return
        if self._planner.stops_long_stacks:
            candidates.learn_copied(feedback)
            self._leave_samples()
        kernel.learn(candidates.others(feedback))

    def list_threads(self) -> list[ThreadInfo]:
        return [*self.main.threads(), *self.partial.list_threads()]

    def retire(self) -> None:
        self.main.retire()
        self.partial.retire()

    def stats(self) -> CollectorStats:
        """Return the statistics of the main source together with those of the threads that are stopped."""
        main, stopped = self.main.stats(), self.partial.stats()
        if self._kernel is None:
            return main
        clock = main if self._copied or not stopped.ticks else stopped
        return replace(
            stopped,
            ticks=clock.ticks,
            ticking_ns=clock.ticking_ns,
            skipped=main.skipped + stopped.skipped,
            notes=self.partial.describe(main.notes, self._images.why, alone=not self._copied),
            accounts=main.accounts,
        )

    def end_now(self) -> None:
        """End the iteration of batches() with the samples until this moment, because another main source takes over."""
        self._has_successor = True
        self.main.end_now()
        self.partial.stop()

    def stop(self) -> None:
        self._stopping = True
        self.main.stop()
        self.partial.stop()

    def close(self) -> None:
        try:
            self.partial.close()
        finally:
            self.main.close()
