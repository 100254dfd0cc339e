"""What there is of a window under way: a recording file of all services for each part of it, which become segments only
where the agent was killed. To write one costs a quarter of what its segments would.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from pyprof.agent.splitting import segments
from pyprof.agent.spool import SpoolSegment
from pyprof.errors import PyprofError
from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile
from pyprof.model.several import merge


def packed(profile: Profile) -> bytes:
    """As a recording file."""
    from pyprof.recording.writer import write

    out = io.BytesIO()
    write(profile, out, ExportOptions())
    return out.getvalue()


def restored(paths: Sequence[str], window: str, broken: Callable[[], None]) -> Sequence[SpoolSegment]:
    """Of the parts of one window; see spool.Restore. An agent of before saved all that there was, again and again: what
    is in another one is left out.
    """
    from pyprof.recording.reader import load

    found: list[Profile] = []
    for path in paths:
        try:
            found.append(load(path))
        except PyprofError:
            broken()
    parts: list[Profile] = []
    for part in sorted(found, key=lambda each: (each.start_ns, -each.duration_ns)):
        if not parts or part.start_ns >= parts[-1].start_ns + parts[-1].duration_ns:
            parts.append(part)
    try:
        return segments(merge(parts), (), window) if parts else ()
    except PyprofError:  # they are not of one window
        broken()
        return ()
