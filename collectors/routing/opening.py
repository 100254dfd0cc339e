"""Functions that open the collectors by which a recording takes its samples: BPF, perf_events or ptrace.

The plan (collectors/plan.py) names the collector. It follows from the machine, the user's rights and the options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyprof.collectors.base import Collector, CollectorRefused, SampleSource
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.children import find_descendants
from pyprof.collectors.perf.collector import PerfCollector
from pyprof.collectors.perf.records import list_online_cpus
from pyprof.collectors.plan import BPF, PERF, PTRACE, Choice, find_refusal
from pyprof.collectors.routing.open_sources import MainSource
from pyprof.collectors.routing.planner import Planner, check_stops, collect_facts, describe_refusal_of_bpf
from pyprof.collectors.routing.router import Router
from pyprof.collectors.routing.stop_candidates import StopCandidates
from pyprof.collectors.targets.selection import Request
from pyprof.errors import FormatError
from pyprof.model.reasons import Note, make_note
from pyprof.records import replace
from pyprof.window_flush_protocol import FlushProtocol

if TYPE_CHECKING:
    from pyprof.collectors.bpf.collector import BpfCollector
    from pyprof.collectors.offcpu.wall_clock_collector import WallClockCollector
    from pyprof.collectors.ptrace.collector import PtraceCollector

FROM_OUTSIDE = make_note("sleepers_from_outside")
_SLEEPER_HZ = 1000.0
"""Rate in Hz of the collector that reads sleeping threads. The first read waits for its first sampling time."""


def open_planned(request: Request, name: str) -> Collector:
    """Open the collector of a recording.

    If the kernel refuses a source that --collector auto chose, the plan is made again without it.

    Args:
        request: The processes and options.
        name: The user's --collector.

    Raises:
        PyprofError: No source can do what is requested, or the error of a collector.
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
            return Router(planner, choice, pids, openings.open, openings.open_stops, request.launched)
        except CollectorRefused as error:
            if choice.source == name:
                raise
            planner.refuse(choice.source, error, pids)


def _with_note_on_bpf(request: Request, planner: Planner) -> Request:
    """Return a request whose summary will say why BPF is not used, if BPF would have been better.

    If that is certain only when stops have read frames of an interpreter, the note is added then.
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
    """Yield the processes of a request whose programs have started."""
    if not request.launched:
        yield from request.selection.pids
        yield from find_descendants(request.selection.pids) if request.options.subprocesses else ()


def _find_none(pid: int) -> str:
    return ""


class _Openings:
    """The functions that open the collectors of one recording, with the user's request."""

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
        """Open the collector that stops the threads and processes which the main source of the recording leaves out."""
        return open_stops_of_candidates(self._request, candidates)

    def _perf(self, pids: tuple[int, ...], launched: bool) -> PerfCollector:
        request = self._request
        return PerfCollector(
            pids[0],
            self._options,
            request.diagnostics,
            ids=request.ids,
            selection=request.with_processes(pids),
            before_exec=launched,
        )

    def _wall_clock(self, pids: tuple[int, ...], launched: bool) -> WallClockCollector:
        from pyprof.collectors.offcpu.wall_clock_collector import WallClockCollector
        from pyprof.collectors.perf.switch_source import PerfSwitchSource
        from pyprof.collectors.perf.switches import Switches

        request = self._request
        switches = Switches(self._options, request.diagnostics, request.selection.everything, request.ids.next_id())
        try:
            perf = self._perf(pids, launched)
            try:
                return WallClockCollector(PerfSwitchSource(perf, switches), self._sleepers, self._options)
            except BaseException:
                perf.close()
                raise
        except BaseException:
            switches.close()
            raise

    def _sleepers(self, flush_s: float) -> PtraceCollector:
        """Open a collector that reads the stacks of sleeping threads and stops none of them."""
        asleep = replace(self._options, running=False, stop_sleepers=False, flush_s=flush_s)
        request = replace(self._request, options=asleep)
        return open_stops(request, request.selection.pids, note=FROM_OUTSIDE)

    def _by_bpf(self, pids: tuple[int, ...], launched: bool, why: str) -> BpfCollector:
        """Open the BPF collector for some processes.

        Args:
            pids: The processes.
            launched: True if the program has not started yet.
            why: Why BPF samples them (see make_cause), "" if the plan's rule says it all.
        """
        from pyprof.collectors.bpf.collector import BpfCollector
        from pyprof.collectors.bpf.sample_source import BpfSource
        from pyprof.collectors.bpf.sampler import BpfSampler, KernelTargets, choose_ring_size

        request, options = self._request, self._options
        selection = request.with_processes(pids)
        watched = KernelTargets(
            rate_hz=options.rate_hz if options.running else 0.0,
            everything=selection.everything,
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
        sampler = BpfSampler(watched, choose_ring_size(watched, len(processors)), processors)
        try:
            reader = request.interpreters.kernel_reader if request.interpreters else None
            least_ns = round(1e9 * options.min_block_s)
            source = BpfSource(sampler, request.diagnostics, request.ids.next_id, reader, least_ns)
            of_both = (source, pids[0], options, request.diagnostics, request.ids, selection, launched)
            if options.idle:
                from pyprof.collectors.bpf.wait_collector import BpfWaitCollector

                return BpfWaitCollector(*of_both, self._sleepers_before_bpf)
            return BpfCollector(*of_both, why)
        except BaseException:
            sampler.close()
            raise

    def _seeks(self, pids: tuple[int, ...]) -> bool:
        """Return True if a process has interpreter evaluator calls that wait on stacks outside any chain (greenlets).

        If waits are recorded, the search for such calls makes the program in the kernel so long that loading it takes
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


def open_stops(request: Request, pids: tuple[int, ...], note: Note | None = None) -> PtraceCollector:
    """Open the collector that samples by short stops for some processes of a recording."""
    from pyprof.collectors.ptrace.collector import PtraceCollector

    return PtraceCollector(
        pids[0],
        request.options,
        request.diagnostics,
        note=note,
        ids=request.ids,
        readers=request.readers,
        selection=request.with_processes(pids),
        frames_note=request.frames_note,
    )


def open_stops_of_candidates(request: Request, candidates: StopCandidates) -> PtraceCollector:
    """Open the collector that stops threads whose stacks the kernel cannot copy, and processes with interpreters."""
    from pyprof.collectors.ptrace.collector import PtraceCollector

    return PtraceCollector(
        candidates.pids[0],
        replace(request.options, subprocesses=False),
        request.diagnostics,
        ids=request.ids,
        readers=request.readers,
        selection=candidates,
        wanted=candidates.wants,
        frames_note=request.frames_note,
    )
