"""A collector that opens the source which the plan (sampling_source_plan.py) names, and changes the source when the
plan changes.

A source is BPF, perf_events or ptrace. The main source samples all threads, except those that are sampled by
ptrace stops instead (open_sources.py). When the plan names another main source, the collector opens that one
while the present one still samples. The present one then yields what it has up to that moment. open_planned()
opens the collector of a recording: the combined collector with the source that the first plan names.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyprof.collector_control import FlushProtocol
from pyprof.collectors.base import Collector, CollectorRefused, CollectorStats, Feedback, SampleSource
from pyprof.collectors.combined.open_sources import ClosedSources, MainSource, OpenSources, OpenStops, sum_stats
from pyprof.collectors.combined.planner import Planner, check_stops, collect_facts, describe_refusal_of_bpf
from pyprof.collectors.combined.threads_to_stop import StopCandidates
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.child_processes import find_descendants
from pyprof.collectors.perf.cpu_wide_events import choose_record_scope, choose_scope
from pyprof.collectors.perf.kernel_collector import (
    NEVER_STOPPED,
    ChooseScope,
    KernelCollector,
    KernelRecords,
    PerfSamples,
)
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
from pyprof.collectors.sampling_source_plan import BPF, PERF, PTRACE, Choice, find_refusal
from pyprof.collectors.targets.process_selection import Request
from pyprof.errors import FormatError, NoSuchProcess, PyprofError
from pyprof.lazy_dataclasses import replace
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch

if TYPE_CHECKING:
    from pyprof.collectors.offcpu.wall_clock_collector import WallClockCollector
    from pyprof.collectors.ptrace.collector import PtraceCollector


_CHANGES = {
    "plan_interpreter": "until_interpreter",
    "plan_second_stack": "until_second_stack",
    "plan_short_lives": "until_short_lives",
    "plan_waits_by_stops": "no_stops_needed",
}
"""The note for the summary about the time before a change of the main source, by the rule of the plan that
required the change.
"""


OpenMain = Callable[[Choice, tuple[int, ...], bool], MainSource]
"""The type of a function (choice, pids, launched) that opens the main source which the choice names, for
these processes. Its errors are passed on.
"""


class CombinedCollector:
    """The collector of a live recording, which samples each thread by the source that the plan names."""

    def __init__(
        self,
        planner: Planner,
        choice: Choice,
        pids: tuple[int, ...],
        open_main: OpenMain,
        open_stops: OpenStops,
        launched: bool = False,
    ) -> None:
        """Open the first main source, which samples all threads except those that are sampled by stops.

        Args:
            planner: The facts and the plan of the recording.
            choice: The plan's choice of the first main source.
            pids: The processes to record.
            open_main: Function that opens a main source.
            open_stops: Function that opens the ptrace collector for some threads.
            launched: True if the program has not started yet.
        """
        self._planner = planner
        self._open_main = open_main
        self._open_stops = open_stops
        self._past = ClosedSources()
        self._changes: list[Note] = []
        self._stopping = False
        self._following: tuple[Choice, MainSource] | None = None
        self._open = self._begin(choice, open_main(choice, pids, launched), launched)

    def _begin(self, choice: Choice, main: MainSource, launched: bool = False) -> OpenSources:
        return OpenSources(self._planner, choice, main, self._open_stops, self._follow, launched)

    def batches(self) -> Iterator[SampleBatch]:
        while True:
            yield from self._open.batches()
            if self._stopping or self._following is None:
                return
            self._change_source(*self._following)

    def _follow(self, choice: Choice, pids: Sequence[int]) -> bool:
        """Open the main source that a choice of the plan names, unless it is the present one, and make the
        present source end. Return True if the source changes.
        """
        alive = tuple(pids)
        if choice.source == self._open.choice.source or not alive:
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
        self._open.end_now()
        return True

    def _change_source(self, choice: Choice, following: MainSource) -> None:
        """Close the main source after its last batch, and continue with `following`, which is already open."""
        past, stats = self._open, self._open.stats()
        if stats.ticks:
            seconds = (time.monotonic_ns() - past.began_ns) / 1e9
            self._changes.append(make_note(_CHANGES[choice.rule], seconds=seconds))
        self._past.add_source(replace(stats, notes=()), past.list_threads())
        self._open = self._begin(choice, following)
        self._following = None
        if self._stopping:  # stop() may have missed this source
            self._open.stop()
        past.main.close()

    def learn(self, feedback: Feedback) -> None:
        self._open.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        return self._past.list_threads(self._open.list_threads())

    def retire(self) -> None:
        self._past.retire()
        self._open.retire()

    def stats(self) -> CollectorStats:
        found = sum_stats(self._past.stats, self._open.stats())
        notes = found.notes
        if len(self._past.stats.pauses):
            notes = tuple(note for note in notes if note != NEVER_STOPPED)
        return replace(found, notes=(*notes, *self._changes))

    def stop(self) -> None:
        self._stopping = True
        following = self._following
        self._open.stop()
        if following is not None:
            following[1].stop()

    def close(self) -> None:
        following, self._following = self._following, None
        try:
            self._open.close()
        finally:
            if following is not None:
                following[1].close()


FROM_OUTSIDE = make_note("sleepers_from_outside")
_SLEEPER_HZ = 1000.0
"""Sampling rate in Hz of the collector that reads sleeping threads. It is high because the first read waits
for the first sampling time.
"""


def open_planned(request: Request, name: str) -> Collector:
    """Open the collector of a recording.

    If the kernel refuses a source that --collector auto chose, the plan is made again without it.

    Args:
        request: The processes and options.
        name: Name of the collector that the user requests by --collector.

    Raises:
        PyprofError: No source can do what is requested, or the requested source cannot be opened.
    """
    pids, options = request.selection.pids, request.options
    facts = collect_facts(pids, options, request.selection.everything, request.launched)
    if name == PTRACE or facts.perf_user_only or find_refusal(PERF, facts, options) is not None:
        facts = check_stops(facts, pids)
    planner = Planner(facts, options, name, request.interpreters.needs_stops if request.interpreters else _find_none)
    while True:
        openings = _Openings(_with_note_on_bpf(request, planner))
        choice = planner.choose_first(_find_started(request))
        try:
            return CombinedCollector(planner, choice, pids, openings.open, openings.open_stops, request.launched)
        except CollectorRefused as error:
            if choice.source == name:
                raise
            planner.refuse(choice.source, error, pids)


def _with_note_on_bpf(request: Request, planner: Planner) -> Request:
    """Return the request with a note for its summary that says why BPF is not used, if BPF would have been
    better.

    That is not certain while no process is known to run an interpreter. Then the ptrace collector adds the
    note when it reads frames of an interpreter.
    """
    why = planner.find_refusal_of_bpf()
    if why is None or request.interpreters is None:
        return request
    selection, note = request.selection, describe_refusal_of_bpf(why)
    pids = selection.pids if request.options.kernel else ()  # stops cannot replace BPF in that case
    if (
        BPF in planner.facts.refused
        or selection.everything
        or any(planner.inspect(pid).interpreter != "" for pid in pids)
    ):
        return replace(request, selection=replace(selection, refused=(*selection.refused, note)))
    return replace(request, frames_note=note)


def _find_started(request: Request) -> Iterator[int]:
    """Yield the pids of the requested processes that already run their programs, and of their descendants if
    those are recorded.
    """
    if not request.launched:
        yield from request.selection.pids
        yield from find_descendants(request.selection.pids) if request.options.subprocesses else ()


def _find_none(pid: int) -> str:
    return ""


class _Openings:
    """The functions that open the collectors of one recording according to the user's request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._options = request.options

    def open(self, choice: Choice, pids: tuple[int, ...], launched: bool) -> MainSource:
        """Open the collector that a choice of the plan names, as the main source of the recording."""
        if choice.source == BPF:
            return self._by_bpf(pids, launched, choice.why)
        if choice.source == PTRACE:
            note = make_note("by_stops", why=choice.why) if choice.why else None
            return open_stops(self._request, pids, note)
        return self._wall_clock(pids, launched) if self._options.idle else self._perf(pids, launched)

    def open_stops(self, candidates: StopCandidates) -> PtraceCollector:
        """Open the collector that stops threads whose stacks the kernel cannot copy, and processes with
        interpreters. The main source of the recording leaves out these threads.
        """
        request = replace(self._request, options=replace(self._options, subprocesses=False))
        return open_stops(request, candidates.pids, candidates=candidates)

    def _perf(self, pids: tuple[int, ...], launched: bool) -> KernelCollector:
        records = self._open_records(pids, choose_scope, launched)
        return KernelCollector(records, PerfSamples(records, self._options), self._options)

    def _open_records(
        self, pids: tuple[int, ...], choose: ChooseScope, launched: bool, wakes: bool = False
    ) -> KernelRecords:
        request, selection = self._request, self._request.with_processes(pids)
        of_all = (self._options, request.diagnostics, choose, request.ids, selection)
        return KernelRecords(pids[0], *of_all, before_exec=launched, wakes=wakes)

    def _wall_clock(self, pids: tuple[int, ...], launched: bool) -> WallClockCollector:
        from pyprof.collectors.offcpu.wall_clock_collector import WallClockCollector
        from pyprof.collectors.perf.context_switch_source import PerfSwitchSource
        from pyprof.collectors.perf.context_switches import Switches

        request = self._request
        everything = request.selection.everything
        with contextlib.ExitStack() as undo:
            switches = Switches(self._options, request.diagnostics, everything, request.ids.next_id())
            undo.callback(switches.close)
            perf = self._perf(pids, launched)
            undo.callback(perf.close)
            collector = WallClockCollector(PerfSwitchSource(perf, switches), self._sleepers, self._options)
            undo.pop_all()
        return collector

    def _sleepers(self, flush_s: float) -> PtraceCollector:
        """Open a collector that reads the stacks of sleeping threads and stops none of them."""
        asleep = replace(self._options, running=False, stop_sleepers=False, flush_s=flush_s)
        request = replace(self._request, options=asleep)
        return open_stops(request, request.selection.pids, note=FROM_OUTSIDE)

    def _by_bpf(self, pids: tuple[int, ...], launched: bool, why: str) -> KernelCollector:
        """Open the collector that samples some processes by a BPF program.

        Args:
            pids: The processes.
            launched: True if the program has not started yet.
            why: Why BPF samples them (see make_cause), "" if the plan's rule says it all.
        """
        from pyprof.collectors.bpf.kernel_program import BpfSampler, KernelTargets, choose_ring_size
        from pyprof.collectors.bpf.on_cpu_samples import BpfSamples
        from pyprof.collectors.bpf.samples_from_ring import BpfSource

        request, options = self._request, self._options
        watched = KernelTargets(
            rate_hz=options.rate_hz if options.running else 0.0,
            everything=request.selection.everything,
            follow=options.subprocesses,
            waits=options.idle,
            runnable=options.running,
            kernel=options.kernel,
            wakers=options.wakers,
            locks=options.locks,
            seeks=not options.idle or self._seeks(pids),
            tasks=request.interpreters is not None and request.interpreters.follow_tasks,
        )
        processors = list_online_cpus()
        with contextlib.ExitStack() as undo:
            sampler = BpfSampler(watched, choose_ring_size(watched, len(processors)), processors)
            undo.callback(sampler.close)
            reader = request.interpreters.kernel_reader if request.interpreters else None
            least_ns = round(1e9 * options.min_block_s)
            source = BpfSource(sampler, request.diagnostics, request.ids.next_id, reader, least_ns)
            records = self._open_records(pids, choose_record_scope, launched, wakes=True)
            undo.callback(records.closing.close)
            if options.idle:
                from pyprof.collectors.bpf.wall_clock_samples import BpfWaitSamples

                waits = BpfWaitSamples(records, source, options, launched, self._sleepers_before_bpf)
                collector = KernelCollector(records, waits, options)
            else:
                samples = BpfSamples(records, source, options, launched, why)
                collector = KernelCollector(records, samples, options)
            undo.pop_all()
        return collector

    def _seeks(self, pids: tuple[int, ...]) -> bool:
        """Return True if a process has suspended calls of its interpreter's evaluator that its chain of
        frames lacks (greenlets).

        If waits are recorded, the search for such calls makes the BPF program so long that loading it takes
        0.2 s more. So it is done only if necessary.
        """
        request = self._request
        if request.interpreters is None:
            return False
        for pid in pids:
            with contextlib.suppress(OSError, FormatError):
                reader = request.interpreters.kernel_reader(pid)
                reader.inspect_process(
                    procfs.read_address_space(pid, request.ids.next_id(), generation=0), procfs.list_tasks(pid)
                )
                found = reader.offsets()
                if found is not None and found[1].seeks:
                    return True
        return False

    def _sleepers_before_bpf(self, pids: list[int]) -> SampleSource:
        """Open a collector that reads the stacks of threads that slept before BPF began, and stops none of them."""
        options = replace(self._options, rate_hz=_SLEEPER_HZ, flush_s=0.0, handover=FlushProtocol())
        asleep = replace(options, running=False, stop_sleepers=False, subprocesses=False)
        return open_stops(replace(self._request, options=asleep), tuple(pids))


def open_stops(
    request: Request, pids: tuple[int, ...], note: Note | None = None, candidates: StopCandidates | None = None
) -> PtraceCollector:
    """Open the collector that samples processes of a recording by short ptrace stops: all of their threads,
    or only the `candidates`.
    """
    from pyprof.collectors.ptrace.collector import PtraceCollector

    return PtraceCollector(
        pids[0],
        request.options,
        request.diagnostics,
        note=note,
        ids=request.ids,
        readers=request.readers,
        selection=candidates if candidates is not None else request.with_processes(pids),
        wanted=candidates.wants if candidates is not None else None,
        frames_note=request.frames_note,
    )
