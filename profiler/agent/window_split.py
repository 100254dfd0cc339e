"""Division of a window of all processes into segments: one for each service, with the rules' labels on each thread."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from pyprof.agent.rules import RuleVerdict
from pyprof.agent.segment_names import SegmentName
from pyprof.agent.spool import SpoolSegment
from pyprof.exporters import pprof
from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile
from pyprof.model.reasons import said
from pyprof.model.sample_filter import selected
from pyprof.model.share_interval import profile_basis
from pyprof.records import replace

MAX_SERVICES = 500
"""Maximum number of services in a window; all others become the service OTHER, since the names come from processes."""
OTHER = "other"
_EVIDENCE = ExportOptions(evidence=True)


def labelled(profile: Profile, verdict: Callable[[int, int], RuleVerdict]) -> Profile:
    """Give each thread of a profile the labels of its process, including "service"; verdict is called with pid and
    start.
    """
    verdicts = [verdict(*thread.process_key) for thread in profile.threads]
    threads = [
        replace(thread, labels=found.labels or (("service", OTHER),))
        for thread, found in zip(profile.threads, verdicts, strict=True)
    ]
    return replace(profile, threads=tuple(threads))


def segments(
    profile: Profile, services: Iterable[str], window: str = "", has_exact_sums: bool = True
) -> list[SpoolSegment]:
    """Split a labelled window into one segment for each service.

    Args:
        services: Services that had processes. One without samples gets an empty segment, which distinguishes it from
            one that was not recorded.
        window: See SegmentName.new().
        has_exact_sums: True if sums are those of the kernel's clocks, False if they are what samples stand for.
    """
    found: dict[str, list[int]] = {}
    for index, thread in enumerate(profile.threads):
        service = dict(thread.labels)["service"]
        found.setdefault(service if service in found or len(found) < MAX_SERVICES else OTHER, []).append(index)
    for service in services:
        if len(found) < MAX_SERVICES:
            found.setdefault(service, [])
    return [_segment(profile, service, indices, window, has_exact_sums) for service, indices in sorted(found.items())]


def _segment(profile: Profile, service: str, threads: list[int], window: str, has_exact_sums: bool) -> SpoolSegment:
    wanted = np.zeros(len(profile.threads), np.bool_)
    wanted[threads] = True
    part = selected(profile, wanted[profile.thread] if len(profile.thread) else np.zeros(0, np.bool_))
    part = _with_basis(part, has_exact_sums)
    out = io.BytesIO()
    pprof.write(_used(replace(part, title=service)), out, _EVIDENCE)
    return SpoolSegment(SegmentName.new(service, profile.start_ns + profile.duration_ns, window), out.getvalue())


def _with_basis(profile: Profile, has_exact_sums: bool) -> Profile:
    """Add a note to the profile of a service that says how accurate its shares are.

    Args:
        profile: On-CPU samples of one service in one window.
        has_exact_sums: True if the sums are those of the kernel's clocks, so that only the shares within a process are
            estimates.
    """
    if (basis := profile_basis(profile)) is None:
        return profile
    samples, width = f"{basis.samples:.0f}", round(100 * basis.half_width)
    if has_exact_sums:
        note = said("shares_by_samples", samples=samples, sampled=round(100 * basis.sampled), width=width)
    else:
        note = said("sums_by_samples", samples=samples, width=width)
    return replace(profile, summary=replace(profile.summary, notes=(*profile.summary.notes, note)))


def _used(profile: Profile) -> Profile:
    """Remove the modules without frames from a profile."""
    used = sorted({frame.module for frame in profile.frames if frame.module >= 0})
    index: Mapping[int, int] = {module: at for at, module in enumerate(used)} | {-1: -1}
    return replace(
        profile,
        modules=tuple(profile.modules[module] for module in used),
        frames=tuple(replace(frame, module=index[frame.module]) for frame in profile.frames),
    )
