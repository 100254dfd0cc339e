"""The function that opens the collector that uses perf_events, and others that complement it.

Those are stops of threads whose stacks the kernel cannot copy and of programs with interpreters, and reads of sleeping
threads from outside. If the user named no collector, a program in the kernel replaces all of them, if it is available,
as soon as an interpreter runs or a stack continues in another one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyprof.collectors.base import Collector, CollectorRefused, PartialVisibility
from pyprof.collectors.hybrid import bpf_opening
from pyprof.collectors.hybrid.by_image import ByImage
from pyprof.collectors.hybrid.collector import HybridCollector
from pyprof.collectors.hybrid.stop_candidates import NO_STOPS, stops_of
from pyprof.collectors.hybrid.until_program import UntilProgram
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.children import find_descendants
from pyprof.collectors.linux.sampled_arch import KNOWN_MACHINES, MACHINE, NARROW, PERF_ARCHES, WIDE
from pyprof.collectors.perf.attr import PerfNotAllowed
from pyprof.collectors.perf.collector import USER_ONLY, PerfCollector
from pyprof.collectors.perf.event_scope import choose_scope
from pyprof.collectors.perf.ring import list_online_cpus
from pyprof.collectors.ptrace.opening import by_stops
from pyprof.collectors.targets.collector_request import CollectorTarget, Request
from pyprof.errors import NoSuchProcess, PyprofError, UnsupportedArchitecture
from pyprof.model.reasons import said
from pyprof.options import CollectOptions
from pyprof.records import replace

if TYPE_CHECKING:
    from pyprof.collectors.offcpu.collector import WallClockCollector
    from pyprof.collectors.ptrace.collector import PtraceCollector

FROM_OUTSIDE = said("sleepers_from_outside")


def can(target: CollectorTarget, options: CollectOptions) -> PyprofError | None:
    """Return an error if the perf_events collector cannot be used, because of the architecture, rights, or missing time
    in the kernel; else None.
    """
    if options.wakers:  # only the program in the kernel reports them
        return bpf_opening.can(target, options)
    if MACHINE not in PERF_ARCHES:
        return UnsupportedArchitecture(f"samples of perf_events are read on {KNOWN_MACHINES}")
    try:
        arch = procfs.read_arch(target.pid) if target.pid else WIDE
        if arch not in (WIDE, NARROW):
            return UnsupportedArchitecture(f"it runs {arch.name} code")
        scope = choose_scope(target.pid, list_online_cpus()[0], options, target.everything)
    except PerfNotAllowed as error:
        return error
    except ProcessLookupError:
        return NoSuchProcess(f"there is no process {target.pid}", "list processes with: ps -e")
    return PartialVisibility(USER_ONLY) if scope.event.user_only else None


def open(request: Request) -> Collector:
    """Open the collector that uses perf_events, with the collectors that complement it.

    Raises:
        CollectorRefused: perf_events are not permitted.
        PyprofError: Any other error of the collectors.
    """
    return bpf_opening.in_its_place(request, _Openings(request).collector())


class _Openings:
    """The ways to open collectors for one recording, by what the system permits."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._options = request.options
        everything, interpreters = request.selection.everything, request.interpreters
        self._by_image: ByImage | None = None
        by_program = not request.by_name and self._options.running
        if by_program and interpreters and not everything and not self._options.kernel:
            self._by_image = ByImage(interpreters.needs_stops)
        self._by_depth = not self._options.kernel and self._options.stack_size > NO_STOPS
        self._by_bpf = (
            not request.by_name
            and interpreters is not None
            and bpf_opening.can(request.target, request.options) is None
        )

    def collector(self) -> Collector:
        pids, launched = self._request.selection.pids, self._request.launched
        if self._options.wakers:
            return bpf_opening.open(self._request)
        if not self._options.idle:
            return self._tried(self._with_bpf, lambda: self._running(self._by_image))
        return self._tried(lambda: bpf_opening.open(self._request), lambda: self._all_time(pids, launched))

    def _tried(self, by_bpf: Callable[[], Collector], without: Callable[[], Collector]) -> Collector:
        """Return the collector that uses the BPF program in the kernel, if it is available."""
        if not self._by_bpf:
            return without()
        try:
            return by_bpf()
        except CollectorRefused as why:
            from pyprof.collectors.hybrid.without_program import WithoutProgram

            return WithoutProgram(without(), why, certain=True)

    def _all_time(self, pids: tuple[int, ...], launched: bool) -> Collector:
        """Open a collector of the running and waiting time of threads."""
        if self._by_image is None:
            return self._wall_clock(pids, launched)
        from pyprof.collectors.hybrid.whole_process import WholeProcessCollector

        return WholeProcessCollector(
            open_without_stops=lambda pids, first: self._wall_clock(tuple(pids), first and launched),
            stopping=lambda pids, _: by_stops(self._request, tuple(pids)),
            by_image=self._by_image,
            pids=pids,
            launched=launched,
        )

    def _running(self, by_image: ByImage | None) -> HybridCollector | PerfCollector:
        """Open a collector of the running time of threads."""
        request = self._request
        perf = self._perf(request.selection.pids, request.launched)
        if self._by_depth or by_image:
            return HybridCollector(perf, partial(stops_of, request), by_image, self._by_depth, request.launched)
        return perf

    def _with_bpf(self) -> Collector:
        """Open the BPF collector if an interpreter runs or may start soon, else prepare to open it later.

        Later means when an interpreter starts, or when a thread would be stopped because its stack continues in another
        one.

        Raises:
            PyprofError: An error of the collector that uses the program.
        """
        request, interpreters = self._request, self._request.interpreters
        assert interpreters is not None
        pids = request.selection.pids
        if request.selection.everything or request.launched:  # a command may become any other at any time
            return bpf_opening.open(request)
        children = find_descendants(pids) if self._options.subprocesses else ()
        reason = next((why for pid in (*pids, *children) if (why := interpreters.needs_stops(pid)) != ""), "")
        if reason != "":
            return bpf_opening.opened(request, pids, False, reason or "")
        return UntilProgram(
            interpreters.needs_stops,
            lambda by_image, instead: HybridCollector(
                self._perf(pids, False), partial(stops_of, request), by_image, self._by_depth, instead=instead
            ),
            lambda alive, why: bpf_opening.opened(request, tuple(alive), False, why),
        )

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

    def _from_outside(self, flush_s: float) -> PtraceCollector:
        """Open a collector that reads the stacks of sleeping threads and stops none of them."""
        asleep = replace(self._options, running=False, stop_sleepers=False, flush_s=flush_s)
        request = replace(self._request, options=asleep)
        return by_stops(request, request.selection.pids, note=FROM_OUTSIDE)

    def _wall_clock(self, pids: tuple[int, ...], launched: bool) -> WallClockCollector:
        from pyprof.collectors.offcpu.collector import WallClockCollector
        from pyprof.collectors.perf.switch_source import PerfSwitchSource
        from pyprof.collectors.perf.switches import Switches

        switches = Switches(
            self._options,
            self._request.diagnostics,
            self._request.selection.everything,
            self._request.ids.next_id(),
        )
        try:
            perf = self._perf(pids, launched)
            try:
                return WallClockCollector(PerfSwitchSource(perf, switches), self._from_outside, self._options)
            except BaseException:
                perf.close()
                raise
        except BaseException:
            switches.close()
            raise
