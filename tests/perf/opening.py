"""A function that opens the collector of perf_events without a plan."""

from __future__ import annotations

from pyprof.collectors.perf.cpu_wide_events import choose_scope
from pyprof.collectors.perf.kernel_collector import ChooseScope, KernelCollector, KernelRecords, PerfSamples
from pyprof.collectors.thread_start_times import Identities
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics


def open_perf(
    pid: int,
    options: CollectOptions,
    diagnostics: Diagnostics,
    ring_size: int = 0,
    choose_scope: ChooseScope = choose_scope,
) -> KernelCollector:
    """Open the collector that samples a process by perf_events. The arguments are those of KernelRecords."""
    records = KernelRecords(pid, options, diagnostics, choose_scope, Identities(), ring_size=ring_size)
    return KernelCollector(records, PerfSamples(records, options), options)
