"""Parts of a profile's time in which nothing was recorded: between recordings that are merged."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pyprof.model.profile import Profile, Span

_LEAST_NS = 100_000_000
"""Parts of one recording follow one another at once, but for what is rounded."""


def between(profiles: Iterable[Profile]) -> tuple[Span, ...]:
    """What no one of these has recorded, from the first one's beginning to the last one's end."""
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
    """Their parts from begin to end."""
    parts = ((max(one, begin), min(two, end)) for one, two in gaps)
    return tuple((one, two) for one, two in parts if one < two)


def recorded_until(profile: Profile) -> npt.NDArray[np.int64]:
    """How long had been recorded when each sample was taken: (n,) ns since the beginning, without gaps."""
    since = profile.time_ns - profile.start_ns
    for begin, end in profile.gaps:
        since = since - np.clip(profile.time_ns - begin, 0, end - begin)
    return since
