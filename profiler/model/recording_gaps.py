"""Parts of a profile's time in which nothing was recorded: gaps between merged recordings."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pyprof.model.profile import Profile, Span

_LEAST_NS = 100_000_000
"""Minimum length in nanoseconds of a gap in a profile. Parts of one recording follow each other directly, except for
rounding.
"""


def between(profiles: Iterable[Profile]) -> tuple[Span, ...]:
    """Return the times that none of several profiles has recorded, from the first beginning to the last end."""
    found: list[Span] = []
    recorded = sorted(span for each in profiles for span in _recorded(each))
    until = recorded[0][0] if recorded else 0
    for begin, end in recorded:
        if begin - until >= _LEAST_NS:
            found.append((until, begin))
        until = max(until, end)
    return tuple(found)


def _recorded(profile: Profile) -> Iterable[Span]:
    begin = profile.start_ns
    for gap_begin, gap_end in profile.gaps:
        yield begin, gap_begin
        begin = gap_end
    yield begin, profile.start_ns + profile.duration_ns


def within(gaps: Iterable[Span], begin: int, end: int) -> tuple[Span, ...]:
    """Return the parts of a profile's gaps that lie between two times."""
    parts = ((max(one, begin), min(two, end)) for one, two in gaps)
    return tuple((one, two) for one, two in parts if one < two)


def recorded_until(profile: Profile) -> npt.NDArray[np.int64]:
    """Return the recorded time before each sample: (n,) nanoseconds since the beginning, without gaps."""
    since = profile.time_ns - profile.start_ns
    for begin, end in profile.gaps:
        since = since - np.clip(profile.time_ns - begin, 0, end - begin)
    return since
