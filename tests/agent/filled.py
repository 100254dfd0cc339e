"""Builders of spools that contain segments."""

from __future__ import annotations

import io
from itertools import cycle
from pathlib import Path

from pyprof.exporters import pprof
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.agent.spool import Caps, Spool, SpoolSegment
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.lazy_dataclasses import replace
from pyprof.model.marker_frames import Mark, MarkKind, cut_mark
from pyprof.model.profile import FrameKind, Profile
from pyprof.model.unwind_result import StackEnd
from pyprof.problem_counters import Diagnostics
from tests.exporters.profiles import golden

MINUTE_NS = 60 * 10**9


def marked() -> Profile:
    """Return the golden profile with a description in each of its marker frames."""
    profile = golden()
    marks = cycle(
        [cut_mark(StackEnd.NO_RULE, 0), cut_mark(StackEnd.UNREADABLE, 1 << 20), Mark(MarkKind.MERGE, unplaced=2)]
    )
    frames = (replace(frame, mark=next(marks)) if frame.kind is FrameKind.MARKER else frame for frame in profile.frames)
    return replace(profile, frames=tuple(frames))


def opened(folder: Path, caps: Caps | None = None) -> Spool:
    spool = Spool(str(folder), caps or Caps(age_s=1e9), Diagnostics())
    spool.open()
    return spool


def segment(profile: Profile, service: str, end_ns: int, length_ns: int = MINUTE_NS) -> SpoolSegment:
    out = io.BytesIO()
    window = replace(profile, start_ns=end_ns - length_ns, duration_ns=length_ns)
    pprof.write(window, out, ExportOptions(evidence=True))
    return SpoolSegment(SegmentName.new(service, end_ns), out.getvalue())
