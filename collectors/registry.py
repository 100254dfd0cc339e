"""Which collector records a process: by name, or what is allowed here and sees whole stacks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Protocol

from pyprof.collectors.base import Collector
from pyprof.collectors.hybrid.by_image import ByImage
from pyprof.collectors.hybrid.collector import HybridCollector
from pyprof.collectors.hybrid.stop_candidates import StopCandidates
from pyprof.collectors.hybrid.whole_process import WholeProcessCollector
from pyprof.collectors.linux import procfs
from pyprof.collectors.offcpu.collector import WallClockCollector
from pyprof.collectors.perf.attr import PerfNotAllowed
from pyprof.collectors.perf.collector import USER_ONLY, PerfCollector
from pyprof.collectors.perf.switches import Switches
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.targets.selection import Selection
from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import I386, X86_64
from pyprof.model.interpreter import StackReader
from pyprof.options import CollectOptions

NO_STOPS = 1 << 16
"""With --stack-size up to this nothing is stopped for stacks that perf_events cannot copy."""

FROM_OUTSIDE = "Sleeping threads were read from outside: none was stopped"


class Interpreters(Protocol):
    """What is known of the interpreters in processes."""

    def reader(self, pid: int) -> StackReader:
        """Copies their frames in stops."""
        ...

    def needs_stops(self, pid: int) -> str | None:
        """Why stops are wanted, "" if they are not, None if that cannot be told yet."""
        ...


def open_collector(
    name: str,
    selection: Selection,
    options: CollectOptions,
    diagnostics: Diagnostics,
    interpreters: Interpreters | None = None,
    launched: bool = False,
) -> Collector:
    """name: auto, ptrace or perf. auto takes perf_events where they are allowed and can do what is asked; the notes of
    the collector's statistics say which it took and why. launched: the process is to become another program, when
    batches() is asked for at the latest; that one is recorded. Raises what the collectors raise.
    """
    pid = selection.pids[0]
    ids = itertools.count(1).__next__
    readers = interpreters.reader if interpreters else None
    by_image: ByImage | None = None

    def by_perf(pids: tuple[int, ...] = selection.pids, launched: bool = launched) -> PerfCollector:
        chosen = replace(selection, pids=pids)
        return PerfCollector(pids[0], options, diagnostics, ids=ids, selection=chosen, before_exec=launched)

    def by_stops(note: str, pids: tuple[int, ...] = selection.pids) -> PtraceCollector:
        chosen = replace(selection, pids=pids)
        return PtraceCollector(pids[0], options, diagnostics, note=note, ids=ids, readers=readers, selection=chosen)

    def from_outside(flush_s: float) -> Collector:
        """Sleeping threads only, none of which is stopped."""
        asleep = replace(options, running=False, stop_sleepers=False, flush_s=flush_s)
        own = replace(selection)  # its budget of looks is its own
        return PtraceCollector(pid, asleep, diagnostics, note=FROM_OUTSIDE, ids=ids, readers=readers, selection=own)

    def by_stops_of(chosen: StopCandidates) -> PtraceCollector:
        """Threads whose stacks the kernel cannot copy, and processes with interpreters."""
        own = replace(options, subprocesses=False)
        first = chosen.pids[0]
        return PtraceCollector(first, own, diagnostics, ids=ids, readers=readers, selection=chosen, chosen=chosen.wants)

    def seeing_all(perf: PerfCollector) -> PerfCollector:
        """auto wants time in the kernel, too. Raises PerfNotAllowed."""
        if name == "auto" and perf.user_only:
            perf.close()
            raise PerfNotAllowed(USER_ONLY)
        return perf

    def whole_time(pids: tuple[int, ...], launched: bool) -> WallClockCollector:
        switches = Switches(options, diagnostics, selection.everything)
        try:
            perf = seeing_all(by_perf(pids, launched))
        except BaseException:
            switches.close()
            raise
        try:
            return WallClockCollector(perf, switches, from_outside, options)
        except BaseException:
            perf.close()
            switches.close()
            raise

    def without_stops() -> Collector:
        if not options.idle:
            perf = seeing_all(by_perf())
            by_depth = not options.kernel and options.stack_size > NO_STOPS
            if by_depth or by_image:
                return HybridCollector(perf, by_stops_of, by_image, by_depth, launched)
            return perf
        if by_image is None:
            return whole_time(selection.pids, launched)
        return WholeProcessCollector(
            whole=lambda pids, first: whole_time(tuple(pids), first and launched),
            stopping=lambda pids, _: by_stops("", tuple(pids)),
            by_image=by_image,
            pids=selection.pids,
            launched=launched,
        )

    if name == "perf":
        return without_stops()
    if name == "ptrace":
        return by_stops("")
    try:
        arch = procfs.arch(pid)
    except ProcessLookupError:
        arch = X86_64
    if arch not in (X86_64, I386):
        return by_stops(_why(f"it runs {arch.name} code."))
    if interpreters and options.running and not options.kernel and not selection.everything:
        by_image = ByImage(interpreters.needs_stops)
    try:
        return without_stops()
    except PerfNotAllowed as error:
        if options.kernel:  # which stops cannot see
            raise
        return by_stops(_why(f"{error.message} {error.hint}"))


def _why(reason: str) -> str:
    return f"Sampled by short stops (ptrace): {reason}"
