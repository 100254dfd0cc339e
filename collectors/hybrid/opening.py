"""Opens the collector that samples by perf_events, with others beside it where these alone are not enough.

That is stops of threads whose stacks the kernel cannot copy and of programs with interpreters, and reads from outside
of threads that sleep.
"""

from __future__ import annotations

from functools import partial

from pyprof.collectors.base import Collector
from pyprof.collectors.hybrid.by_image import ByImage
from pyprof.collectors.hybrid.collector import HybridCollector
from pyprof.collectors.hybrid.stop_candidates import StopCandidates
from pyprof.collectors.hybrid.whole_process import WholeProcessCollector
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.perf_arch import NARROW, WIDE
from pyprof.collectors.offcpu.collector import WallClockCollector
from pyprof.collectors.perf.attr import PerfNotAllowed
from pyprof.collectors.perf.collector import USER_ONLY, PerfCollector
from pyprof.collectors.perf.ring import online_cpus
from pyprof.collectors.perf.scope import choose_scope
from pyprof.collectors.perf.switch_source import PerfSwitchSource
from pyprof.collectors.perf.switches import Switches
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.ptrace.opening import by_stops
from pyprof.collectors.targets.request import Request, Target
from pyprof.errors import NoSuchProcess, PyprofError, UnsupportedArchitecture
from pyprof.options import CollectOptions
from pyprof.records import replace

NO_STOPS = 1 << 16
"""With --stack-size up to this nothing is stopped for stacks that perf_events cannot copy."""

FROM_OUTSIDE = "Sleeping threads were read from outside: none was stopped"


def can(target: Target, options: CollectOptions) -> PyprofError | None:
    """None, or why not: another architecture; perf_events are not allowed, or only without the time in the kernel."""
    try:
        arch = procfs.arch(target.pid) if target.pid else WIDE
        if arch not in (WIDE, NARROW):
            return UnsupportedArchitecture(f"it runs {arch.name} code")
        scope = choose_scope(target.pid, online_cpus()[0], options, target.everything)
    except PerfNotAllowed as error:
        return error
    except ProcessLookupError:
        return NoSuchProcess(f"there is no process {target.pid}", "list processes with: ps -e")
    return PerfNotAllowed(USER_ONLY) if scope.event.user_only else None


def open(request: Request) -> Collector:
    """Raises what the collectors raise; CollectorRefused where perf_events are not allowed."""
    return _Openings(request).collector()


def stops_of(request: Request, candidates: StopCandidates) -> PtraceCollector:
    """Threads whose stacks the kernel cannot copy, and processes with interpreters."""
    return PtraceCollector(
        candidates.pids[0],
        replace(request.options, subprocesses=False),
        request.diagnostics,
        ids=request.next_id,
        readers=request.readers,
        selection=candidates,
        chosen=candidates.wants,
    )


class _Openings:
    """Of one recording: by_image says which programs need stops, None for none."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._options = request.options
        everything, interpreters = request.selection.everything, request.interpreters
        self._by_image: ByImage | None = None
        by_program = not request.by_name and self._options.running and not self._options.kernel and not everything
        if by_program and interpreters:
            self._by_image = ByImage(interpreters.needs_stops)

    def collector(self) -> Collector:
        pids, launched = self._request.selection.pids, self._request.launched
        if not self._options.idle:
            perf = self._perf(pids, launched)
            by_depth = not self._options.kernel and self._options.stack_size > NO_STOPS
            if by_depth or self._by_image:
                return HybridCollector(perf, partial(stops_of, self._request), self._by_image, by_depth, launched)
            return perf
        if self._by_image is None:
            return self._wall_clock(pids, launched)
        return WholeProcessCollector(
            whole=lambda pids, first: self._wall_clock(tuple(pids), first and launched),
            stopping=lambda pids, _: by_stops(self._request, tuple(pids)),
            by_image=self._by_image,
            pids=pids,
            launched=launched,
        )

    def _perf(self, pids: tuple[int, ...], launched: bool) -> PerfCollector:
        request = self._request
        return PerfCollector(
            pids[0],
            self._options,
            request.diagnostics,
            ids=request.next_id,
            selection=request.of(pids),
            before_exec=launched,
        )

    def _from_outside(self, flush_s: float) -> PtraceCollector:
        """Sleeping threads only, none of which is stopped."""
        asleep = replace(self._options, running=False, stop_sleepers=False, flush_s=flush_s)
        request = replace(self._request, options=asleep)
        return by_stops(request, request.selection.pids, FROM_OUTSIDE)

    def _wall_clock(self, pids: tuple[int, ...], launched: bool) -> WallClockCollector:
        switches = Switches(
            self._options,
            self._request.diagnostics,
            self._request.selection.everything,
            self._request.next_id(),
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
