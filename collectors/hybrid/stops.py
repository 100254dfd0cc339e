"""The function that opens the collector for threads and processes that need stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyprof.collectors.hybrid.stop_candidates import StopCandidates
from pyprof.collectors.targets.collector_request import Request
from pyprof.records import replace

if TYPE_CHECKING:
    from pyprof.collectors.ptrace.collector import PtraceCollector

NO_STOPS = 1 << 16
"""Value of --stack-size in bytes up to which no thread is stopped for stacks that the kernel cannot copy."""


def stops_of(request: Request, candidates: StopCandidates) -> PtraceCollector:
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
    )
