"""What there is of a window under way: one recording file of all services, which becomes segments only where the agent
was killed. To write it costs a quarter of what segments cost.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from pyprof.agent.splitting import segments
from pyprof.agent.spool import SpoolSegment
from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile


def packed(profile: Profile) -> bytes:
    """As a recording file."""
    from pyprof.recording.writer import write

    out = io.BytesIO()
    write(profile, out, ExportOptions())
    return out.getvalue()


def restored(path: str, window: str) -> Sequence[SpoolSegment]:
    """path: of such a file. window: see SegmentName.new(). Raises RecordingError."""
    from pyprof.recording.reader import load

    return segments(load(path), (), window)
