"""The router of a recording: it opens the source that the plan names, and follows the plan when facts change.

A process of a millisecond has mostly ended before it can be stopped. perf_events sample it, but users who may not see
time in the kernel by perf_events lose that time. So stops are better as long as they see most of what runs.

One source, the main one, samples the recording. Some threads and processes may be sampled by stops instead. When the
plan names another main source, the router opens that one while the present one still samples. The present one then
yields what it has up to that moment. The router is the only code that knows more than one source.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.collectors.batch_builder import split_at_flushes
from pyprof.collectors.perf.collector import NEVER_STOPPED
from pyprof.collectors.plan import BPF, PERF, PTRACE, Choice, ProcessFacts, UncopiedStack
from pyprof.collectors.routing.planner import ANY_PID, Planner, describe_refusal_of_bpf
from pyprof.collectors.routing.stop_candidates import ByImage, StopCandidates
from pyprof.collectors.routing.stop_fallback import ClosedSources, OpenStops, PartialStops, sum_stats
from pyprof.errors import NoSuchProcess, PyprofError
from pyprof.model.profile import ThreadInfo
from pyprof.model.reasons import Note, make_note
from pyprof.model.sample_batch import SampleBatch
from pyprof.records import replace

if TYPE_CHECKING:
    from pyprof.collectors.bpf.collector import BpfCollector
    from pyprof.collectors.perf.collector import PerfCollector
    from pyprof.collectors.ptrace.collector import PtraceCollector


_MUCH, _SIGMAS = 0.2, 2
_UNSURE_NS = 100_000_000
"""Processor time in nanoseconds that may be missed in addition, because stops first have to learn which threads they
sample.
"""
_WINDOW_NS = 2_000_000_000
"""Processor time in nanoseconds after which a new decision between stops and perf_events begins."""


class MissedTime:
    """The processor time that has no samples since the last decision."""

    def __init__(self, rate_hz: float, births: int) -> None:
        self._period_ns = 1e9 / rate_hz
        self._due_ns = self._seen_ns = 0
        self._births = births

    def is_much(self, births: int, due_ns: int, seen_ns: int) -> bool:
        """Return True if too much processor time has no samples because lives are short, and not by chance.

        Args:
            births: Number of threads and processes that started.
            due_ns: Time that samples should stand for.
            seen_ns: Time that they stand for. All three count from the beginning.
        """
        due, seen, born = due_ns - self._due_ns, seen_ns - self._seen_ns, births - self._births
        if due <= 0:
            return False
        least = max(_MUCH * due + _UNSURE_NS, _SIGMAS * math.sqrt(due * self._period_ns))
        if due > _WINDOW_NS:
            self._due_ns, self._seen_ns, self._births = due_ns, seen_ns, births
        return least < due - seen < born * self._period_ns


_CHANGES = {
    "plan_interpreter": "until_interpreter",
    "plan_second_stack": "until_second_stack",
    "plan_short_lives": "until_short_lives",
    "plan_waits_by_stops": "no_stops_needed",
}
"""The note for the summary about the time before a change of the main source, by the rule that changed it."""


class MainSource(Collector, Protocol):
    """The protocol of a source that can sample a whole recording.

    Attributes:
        source_ids: Identifiers of its batches.
        alive: Processes that have not ended.
    """

    @property
    def source_ids(self) -> frozenset[int]: ...

    @property
    def alive(self) -> list[int]: ...

    def take_new_processes(self) -> set[int]:
        """Return processes that appeared or called exec since the last call."""
        ...

    def end_now(self) -> None:
        """End batches() with the samples until this moment, because another source follows."""
        ...


OpenMain = Callable[[Choice, tuple[int, ...], bool], MainSource]
"""Function (choice, pids, launched) that opens a main source for processes, and raises its errors."""


class Router:
    """The collector of a live recording, which follows its plan."""

    def __init__(
        self,
        planner: Planner,
        choice: Choice,
        pids: tuple[int, ...],
        open_main: OpenMain,
        open_stops: OpenStops,
        launched: bool = False,
    ) -> None:
        """Open the first main source.

        Args:
            planner: The facts and the plan of the recording.
            choice: The first main source.
            pids: The processes.
            open_main: Opens a main source.
            open_stops: Opens the source that stops some threads.
            launched: True if the program has not started yet.
        """
        self._planner = planner
        self._open_main = open_main
        self._open_stops = open_stops
        self._past = ClosedSources()
        self._changes: list[Note] = []
        self._stopping = False
        self._following: tuple[Choice, MainSource] | None = None
        self._begin(choice, open_main(choice, pids, launched), launched)

    def _begin(self, choice: Choice, main: MainSource, launched: bool = False) -> None:
        """Begin to take samples from another main source."""
        planner = self._planner
        planner.note_source(choice.source)
        self._choice, self._main, self._launched = choice, main, launched
        has_records = choice.source == BPF or (choice.source == PERF and not planner.options.idle)
        self._records = cast("PerfCollector", main) if has_records else None
        self._images = ByImage(self._find_stop_reason)
        self._copied = False
        self._began_ns = time.monotonic_ns()
        self._partial = PartialStops(self._open_stops)
        if self._records is not None:
            self._partial.candidates = StopCandidates(self._records.most_copy)
            self._records.slots = self._partial.count_slots
        self._missed: MissedTime | None = None
        if choice.source == PTRACE and planner.may_follow_short_lives():
            self._missed = MissedTime(planner.options.rate_hz, self._stops.totals()[0])

    def batches(self) -> Iterator[SampleBatch]:
        while True:
            yield from self._sample() if self._records is None else self._sample_with_stops(self._records)
            if self._stopping or self._following is None:
                return
            self._change_source(*self._following)

    def _sample(self) -> Iterator[SampleBatch]:
        """Yield the batches of a main source that samples all threads."""
        watches = self._planner.may_depend_on_programs()
        if watches:
            self._watch(first=True)
        for batch in self._main.batches():
            yield batch
            if watches:
                self._watch()
            self._check_short_lives()

    def _sample_with_stops(self, main: PerfCollector) -> Iterator[SampleBatch]:
        """Yield the batches of a main source that reads records of the kernel, and those of partial stops."""
        of_main = main.batches()  # its news begin now, because the first checks of programs take a while
        candidates = self._partial.candidates
        if self._planner.may_depend_on_programs():
            self._watch(first=True)
            main.watch = candidates.watch = self._watch
        while True:
            if not candidates:
                yield from self._note_copies(of_main)
                of_main = main.batches()
            if self._is_over(main) or not candidates:
                return
            candidates.forget_ended()
            if not candidates:
                continue
            if not candidates.long and self._follow_second_stack():
                yield from self._note_copies(main.yield_until())
                return
            stops = self._partial.open_source()
            if stops is None:
                continue
            try:
                yield from self._sample_by_both(main, stops)
            finally:
                self._partial.close()
            if self._is_over(main):
                return

    def _is_over(self, main: PerfCollector) -> bool:
        return self._stopping or self._following is not None or not main.members.has_processes_left

    def _note_copies(self, batches: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
        for batch in batches:
            self._copied = self._copied or len(batch) > 0
            yield batch

    def _sample_by_both(self, main: PerfCollector, stops: PtraceCollector) -> Iterator[SampleBatch]:
        """Yield the batches of stops, and between them those of the main source up to the same times."""
        candidates = self._partial.candidates

        def complete(batches: list[SampleBatch], until_ns: int) -> Iterator[SampleBatch]:
            yield from self._note_copies(main.yield_until(until_ns))
            yield from batches

        if self._stopping:
            stops.stop()
        flushed_ns = stops.flushed_ns
        for batch in stops.batches():
            self._partial.note_batch(batch)
            main.account_batch(batch)
            if stops.flushed_ns == flushed_ns:  # an empty batch, but rings fill meanwhile
                yield from complete([batch], main.handover.bound(time.monotonic_ns()))
            else:
                flushed_ns = stops.flushed_ns
                yield from split_at_flushes(main.handover, [batch], flushed_ns, complete)
            candidates.forget_ended()
            if not candidates or not main.members.has_processes_left:
                stops.stop()
        until_ns = () if self._is_over(main) else (stops.flushed_ns,)
        yield from self._note_copies(main.yield_until(*until_ns))

    def _watch(self, first: bool = False) -> int | None:
        """Check whether programs need another source. Return None if threads must be stopped now, else the time until
        the next check in ns.
        """
        candidates, records = self._partial.candidates, self._records
        self._images.changed(self._main.take_new_processes())
        for pid in self._images.check_due(all_of_them=first, is_over=lambda: self._stopping):
            if records is None:
                continue
            if pid in self._images.reasons and records.members.follows_children(pid):
                candidates.choose_image(pid, from_start=first and not self._launched)
            else:
                candidates.release_image(pid)
        self._leave_samples()
        return None if candidates else self._images.wait_ns()

    def _leave_samples(self) -> None:
        """Let the main source end its batches if other threads must be stopped."""
        if self._records is not None and self._partial.candidates and self._partial.source is None:
            self._records.leave_samples(self._partial.candidates.elsewhere)

    def _find_stop_reason(self, pid: int) -> str | None:
        """Return Choice.stop_reason for a process, after a change of the main source if the plan requires one."""
        if self._following is not None:
            return ""
        if self._choice.source == BPF:
            unreadable = cast("BpfCollector", self._main).source.find_interpreter(pid)
            process = ProcessFacts(unreadable=unreadable)
        else:
            process = self._planner.inspect(pid)
        choice = self._planner.suppose(process).default
        if self._follow(choice):
            return ""
        if choice.source != self._choice.source and choice.source not in self._planner.facts.refused:
            return None
        return self._planner.suppose(process).processes[ANY_PID].stop_reason

    def _follow_second_stack(self) -> bool:
        """Change the main source if the plan does that for threads with second stacks. Return True if it does."""
        return self._follow(self._planner.suppose(ProcessFacts(stacks={ANY_PID: UncopiedStack.SECOND})).default)

    def _check_short_lives(self) -> None:
        """Change the main source if stops miss much, and no process needs them."""
        if self._missed is None or self._following is not None or not self._missed.is_much(*self._stops.totals()):
            return
        planner = self._planner
        planner.facts = replace(planner.facts, short_lives=True)
        choice = planner.make_plan().default
        needless = choice.source != PTRACE and all(planner.choose(pid).stop_reason == "" for pid in self._main.alive)
        if not (needless and self._follow(choice, self._stops.heads)):
            planner.facts = replace(planner.facts, short_lives=False)

    @property
    def _stops(self) -> PtraceCollector:
        """The main source if it samples by stops, else None."""
        return cast("PtraceCollector", self._main)

    def _follow(self, choice: Choice, pids: Sequence[int] | None = None) -> bool:
        """Open the main source that a choice names if it is not the present one, and end the present one. Return True
        if that was done.

        Args:
            choice: The choice.
            pids: The processes, by default all that have not ended.
        """
        alive = tuple(self._main.alive if pids is None else pids)
        if choice.source == self._choice.source or not alive:
            return False
        try:
            self._following = choice, self._open_main(choice, alive, False)
        except NoSuchProcess:
            return False
        except PyprofError as error:
            self._planner.refuse(choice.source, error, alive)
            if choice.source == BPF:
                self._changes.append(describe_refusal_of_bpf(error))
            return False
        self._main.end_now()
        self._partial.stop()
        return True

    def _change_source(self, choice: Choice, following: MainSource) -> None:
        """Close the main source after its last batch, and begin with the one that follows."""
        main, stats = self._main, self._stats_of_present()
        if stats.ticks:
            seconds = (time.monotonic_ns() - self._began_ns) / 1e9
            self._changes.append(make_note(_CHANGES[choice.rule], seconds=seconds))
        self._past.add_source(replace(stats, notes=()), self._list_present_threads())
        self._begin(choice, following)
        self._following = None
        if self._stopping:  # stop() may have missed this source
            following.stop()
        main.close()

    def learn(self, feedback: Feedback) -> None:
        records, candidates = self._records, self._partial.candidates
        if self._partial.learn(feedback) or feedback.batch.source_id not in self._main.source_ids:
            return  # a batch of a closed source teaches nothing
        if records is None:
            self._main.learn(feedback)
            return
        if self._planner.stops_long_stacks:
            candidates.learn_copied(feedback)
            self._leave_samples()
        records.learn(candidates.others(feedback))

    def _list_present_threads(self) -> list[ThreadInfo]:
        return [*self._main.threads(), *self._partial.list_threads()]

    def threads(self) -> list[ThreadInfo]:
        return self._past.list_threads(self._list_present_threads())

    def retire(self) -> None:
        self._past.retire()
        self._main.retire()
        self._partial.retire()

    def _stats_of_present(self) -> CollectorStats:
        """Return the statistics of the main source and of partial stops."""
        main, stopped = self._main.stats(), self._partial.stats()
        if self._records is None:
            return main
        clock = main if self._copied or not stopped.ticks else stopped
        return replace(
            stopped,
            ticks=clock.ticks,
            ticking_ns=clock.ticking_ns,
            skipped=main.skipped + stopped.skipped,
            notes=self._partial.describe(main.notes, self._images.why, alone=not self._copied),
            accounts=main.accounts,
        )

    def stats(self) -> CollectorStats:
        found = sum_stats(self._past.stats, self._stats_of_present())
        notes = found.notes
        if len(self._past.stats.pauses):
            notes = tuple(note for note in notes if note != NEVER_STOPPED)
        return replace(found, notes=(*notes, *self._changes))

    def stop(self) -> None:
        self._stopping = True
        following = self._following
        self._main.stop()
        self._partial.stop()
        if following is not None:
            following[1].stop()

    def close(self) -> None:
        following, self._following = self._following, None
        try:
            self._partial.close()
        finally:
            try:
                self._main.close()
            finally:
                if following is not None:
                    following[1].close()
