"""Opens the collector that stops the threads and processes that one without stops cannot sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyprof.collectors.hybrid.stop_candidates import StopCandidates
from pyprof.collectors.targets.request import Request
from pyprof.records import replace

if TYPE_CHECKING:
    from pyprof.collectors.ptrace.collector import PtraceCollector

NO_STOPS = 1 << 16
"""With --stack-size up to this nothing is stopped for stacks that the kernel cannot copy."""


def stops_of(request: Request, candidates: StopCandidates) -> PtraceCollector:
    """Threads whose stacks the kernel cannot copy, and processes with interpreters."""
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
