"""Which collector records a process, by name or by what is allowed here."""

from __future__ import annotations

from pyprof.collectors.base import Collector
from pyprof.collectors.perf_attr import PerfNotAllowed
from pyprof.collectors.perf_event import PerfCollector
from pyprof.collectors.ptrace import PtraceCollector
from pyprof.diagnostics import Diagnostics
from pyprof.options import CollectOptions

NAMES = ("auto", "ptrace", "perf")


def open_collector(name: str, pid: int, options: CollectOptions, diagnostics: Diagnostics) -> Collector:
    """name: one of NAMES. auto takes perf_events where they are allowed and can do what is asked; the notes of the
    collector's statistics say which it took and why. Raises what the collectors raise.
    """
    if name == "perf":
        return PerfCollector(pid, options, diagnostics)
    if name == "ptrace":
        return PtraceCollector(pid, options, diagnostics)
    reason = _against_perf(options)
    if not reason:
        try:
            return PerfCollector(pid, options, diagnostics)
        except PerfNotAllowed as error:
            reason = f"{error.message} {error.hint}"
    return PtraceCollector(pid, options, diagnostics, note=f"Sampled by short stops (ptrace): {reason}")


def _against_perf(options: CollectOptions) -> str:
    if options.idle:
        return "perf_events see running threads only."
    return ""
