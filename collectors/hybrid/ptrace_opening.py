"""The function that opens the collector that samples by short stops.

perf_events replace it if stops miss too much, the user named no collector, and perf_events are permitted although they
hide the time in the kernel.
"""

from __future__ import annotations

from pyprof.collectors.base import Collector, PartialVisibility
from pyprof.collectors.hybrid.bpf_opening import in_its_place
from pyprof.collectors.ptrace import opening as ptrace
from pyprof.collectors.targets.collector_request import CollectorTarget, Request
from pyprof.errors import PyprofError
from pyprof.options import CollectOptions
from pyprof.records import replace


def can(target: CollectorTarget, options: CollectOptions) -> PyprofError | None:
    """Return an error if the collector that stops threads cannot be used, else None; see ptrace.opening."""
    return ptrace.can(target, options)


def open(request: Request) -> Collector:
    """Open the collector that samples threads by short stops.

    Raises:
        PyprofError: An error of PtraceCollector.
    """
    return in_its_place(request, _opened(request))


def _opened(request: Request) -> Collector:
    stops = ptrace.open(request)
    hides = any(isinstance(refusal, PartialVisibility) for refusal in request.refusals)
    if not hides or request.options.idle or request.interpreters is None:
        return stops
    from pyprof.collectors.hybrid.until_short_lives import UntilShortLives

    needs = request.interpreters.needs_stops
    return UntilShortLives(stops, request.options.rate_hz, needs, lambda pids: _follower(request, pids))


def _follower(request: Request, pids: tuple[int, ...]) -> Collector:
    from pyprof.collectors.hybrid import opening

    return opening.open(replace(request, selection=request.with_processes(pids), program=""))
