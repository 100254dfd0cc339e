"""The function that opens the collector that samples by short stops."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.targets import attach_checks
from pyprof.collectors.targets.collector_request import CollectorTarget, Request
from pyprof.errors import PyprofError, UnsupportedArchitecture
from pyprof.model.arch import native_arches
from pyprof.model.reasons import said
from pyprof.options import CollectOptions

if TYPE_CHECKING:
    from pyprof.collectors.ptrace.collector import PtraceCollector


def can(target: CollectorTarget, options: CollectOptions) -> PyprofError | None:
    """Return an error if stops cannot show what the options request or if the process may not be traced, else None."""
    if options.kernel:
        return CollectorRefused("samples by stops have no kernel frames", "-k --collector perf")
    if options.wakers:
        return CollectorRefused("samples by stops do not show which thread ended a wait", "--collector bpf")
    if not native_arches(os.uname().machine):
        return UnsupportedArchitecture(f"nothing is known of {os.uname().machine}")
    try:
        if target.pid:
            attach_checks.check_target(target.pid)
    except PyprofError as error:
        return error
    return None


def open(request: Request) -> PtraceCollector:
    """Open the collector that samples by short stops.

    Raises:
        NotTraceable: Another process traces all of the processes.
        PyprofError: Any other error of PtraceCollector.
    """
    if not request.launched:
        _check(request.selection.pids)
    reasons = " ".join(f"{error.message.rstrip('.')}. {error.hint}".strip() for error in request.refusals)
    note = said("by_stops", why=reasons) if reasons else ""
    return by_stops(request, request.selection.pids, note)


def _check(pids: tuple[int, ...]) -> None:
    """Raise an error if ptrace can stop none of the processes."""
    errors: list[PyprofError] = []
    for pid in pids:
        try:
            attach_checks.check_target(pid)
            return
        except PyprofError as error:
            errors.append(error)
    raise errors[0]


def by_stops(request: Request, pids: tuple[int, ...], note: str = "") -> PtraceCollector:
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
    )
