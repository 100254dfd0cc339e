"""Which collector records a process: by name, or what is allowed here and sees whole stacks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Protocol

from pyprof.collectors import procfs
from pyprof.collectors.base import Collector
from pyprof.collectors.chosen import Chosen
from pyprof.collectors.hand_over import HandOver
from pyprof.collectors.perf_attr import PerfNotAllowed
from pyprof.collectors.perf_event import USER_ONLY, PerfCollector
from pyprof.collectors.perf_switches import Switches
from pyprof.collectors.ptrace import PtraceCollector
from pyprof.collectors.selection import Selection
from pyprof.collectors.whole_time import WholeTime
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

    def needs_stops(self, pid: int) -> str:
        """Why stops are wanted, "" if they are not."""
        ...


def open_collector(
    name: str,
    selection: Selection,
    options: CollectOptions,
    diagnostics: Diagnostics,
    interpreters: Interpreters | None = None,
) -> Collector:
    """name: auto, ptrace or perf. auto takes perf_events where they are allowed and can do what is asked; the notes of
    the collector's statistics say which it took and why. Raises what the collectors raise.
    """
    pid = selection.pids[0]
    ids = itertools.count(1).__next__
    readers = interpreters.reader if interpreters else None

    def by_perf() -> PerfCollector:
        return PerfCollector(pid, options, diagnostics, ids=ids, selection=selection)

    def by_stops(note: str) -> Collector:
        return PtraceCollector(pid, options, diagnostics, note=note, ids=ids, readers=readers, selection=selection)

    def from_outside(flush_s: float) -> Collector:
        """Sleeping threads only, none of which is stopped."""
        asleep = replace(options, running=False, stop_sleepers=False, flush_s=flush_s)
        own = replace(selection)  # its budget of looks is its own
        return PtraceCollector(pid, asleep, diagnostics, note=FROM_OUTSIDE, ids=ids, readers=readers, selection=own)

    def by_stops_of(chosen: Chosen) -> PtraceCollector:
        """Threads whose stacks the kernel cannot copy."""
        own = replace(options, subprocesses=False, thread=None)
        return PtraceCollector(chosen.pids[0], own, diagnostics, ids=ids, selection=chosen, chosen=chosen.wants)

    def seeing_all(perf: PerfCollector) -> PerfCollector:
        """auto wants time in the kernel, too. Raises PerfNotAllowed."""
        if name == "auto" and perf.user_only:
            perf.close()
            raise PerfNotAllowed(USER_ONLY)
        return perf

    def without_stops() -> Collector:
        if not options.idle:
            perf = seeing_all(by_perf())
            stays = options.kernel or options.stack_size <= NO_STOPS
            return perf if stays else HandOver(perf, by_stops_of)
        switches = Switches(options, diagnostics, selection.everything)
        try:
            perf = seeing_all(by_perf())
        except BaseException:
            switches.close()
            raise
        try:
            return WholeTime(perf, switches, from_outside, options)
        except BaseException:
            perf.close()
            switches.close()
            raise

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
    reason = interpreters.needs_stops(pid) if interpreters and options.running and not options.kernel else ""
    if reason:
        return by_stops(_why(reason))
    try:
        return without_stops()
    except PerfNotAllowed as error:
        if options.kernel:  # which stops cannot see
            raise
        return by_stops(_why(f"{error.message} {error.hint}"))


def _why(reason: str) -> str:
    return f"Sampled by short stops (ptrace): {reason}"
