"""Selects a part of a profile's samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.function_costs import functions_of
from pyprof.model.analysis.merge import clip_gaps
from pyprof.model.analysis.stack_quality import summary_of_part
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, Profile, ThreadInfo

Pattern = str | re.Pattern[str]
Mask = npt.NDArray[np.bool_]


def compiled(pattern: Pattern) -> re.Pattern[str]:
    """Compile a regular expression that selects functions or modules.

    Raises:
        UsageError: The expression is invalid.
    """
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None


def of_threads(profile: Profile, fits: Callable[[ThreadInfo], bool]) -> Mask:
    """Return a mask (n,) of the samples of a profile whose thread matches.

    Args:
        profile: The profile.
        fits: Returns True for a matching thread.
    """
    return np.array([fits(thread) for thread in profile.threads], np.bool_)[profile.thread]


def through(profile: Profile, fits: Callable[[Frame], bool]) -> Mask:
    """Return a mask (n,) of the samples of a profile that have a matching frame anywhere on their stack."""
    hit = [fits(frame) for frame in profile.frames]
    found = np.zeros(len(profile.parent), np.bool_)
    parents, frames = profile.parent.tolist(), profile.frame.tolist()
    for node in range(1, len(parents)):
        found[node] = found[parents[node]] or hit[frames[node]]
    return found[profile.stack]


def in_function(profile: Profile, pattern: Pattern) -> Mask:
    """Return a mask (n,) of the samples of a profile that have a function with a matching name on their stack."""
    wanted = compiled(pattern)
    return through(profile, lambda frame: any(wanted.search(f.name) for f, _ in functions_of(profile, frame)))


def in_module(profile: Profile, pattern: Pattern) -> Mask:
    """Return a mask (n,) of the samples of a profile that have a module with a matching name on their stack.

    The module of a Python function is its script.
    """
    wanted = compiled(pattern)
    return through(profile, lambda frame: any(wanted.search(name) for _, name in functions_of(profile, frame)))


def between(profile: Profile, start: float | None, end: float | None) -> Mask:
    """Return a mask (n,) of the samples of a profile that were taken between two times, in seconds since the profile's
    beginning.
    """
    at = profile.time_ns - profile.start_ns
    first = -np.inf if start is None else start * 1e9
    last = np.inf if end is None else end * 1e9
    found: Mask = (at >= first) & (at < last)
    return found


def cut(profile: Profile, start: float | None, end: float | None) -> Profile:
    """Return the part of a profile between start and end, in seconds since the profile's beginning.

    Raises:
        UsageError: The times are unknown, or there is no time between start and end.
    """
    if not timed(profile):
        raise UsageError("the samples of this profile have no times")
    first, last = (
        default if at is None else round(min(max(at * 1e9, 0), profile.duration_ns))
        for at, default in ((start, 0), (end, profile.duration_ns))
    )
    if first >= last:
        raise UsageError(f"{profile.title} has no time between these two times")
    part = selected(profile, between(profile, start, end))
    kept = clip_gaps(profile.gaps, profile.start_ns + first, profile.start_ns + last)
    return replace(part, start_ns=profile.start_ns + first, duration_ns=last - first, gaps=kept)


def timed(profile: Profile) -> bool:
    """Return True if a profile has a time for each of its samples.

    Formats of other profilers may have none; all samples then have the profile's start as their time.
    """
    return len(profile.time_ns) < 2 or bool(np.ptp(profile.time_ns))


def ids(wanted: int | Iterable[int]) -> frozenset[int]:
    return frozenset((wanted,)) if isinstance(wanted, int) else frozenset(wanted)


def selected(profile: Profile, wanted: Mask) -> Profile:
    """Return a profile of the wanted samples, with only the stacks and threads that they need.

    The times of the recording stay the same.

    Args:
        profile: The profile.
        wanted: (n,) True for the wanted samples.
    """
    leaves, stack = np.unique(profile.stack[wanted], return_inverse=True)
    frame_of, tree = profile.frame.tolist(), Tree()
    place = rewrite(profile.parent.tolist(), lambda node: (frame_of[node],), tree, leaves.tolist())
    used, frame = np.unique(np.array(tree.frame[1:], np.int32), return_inverse=True)
    threads, thread = np.unique(profile.thread[wanted], return_inverse=True)
    part = replace(
        profile,
        frames=tuple(profile.frames[at] for at in used.tolist()),
        parent=np.array(tree.parent, np.int32),
        frame=np.append(np.int32(-1), frame).astype(np.int32),
        threads=tuple(profile.threads[at] for at in threads.tolist()),
        time_ns=profile.time_ns[wanted],
        stack=np.array([place[leaf] for leaf in leaves.tolist()], np.int32)[stack],
        thread=thread.astype(np.int32),
        values=profile.values[wanted],
        state=None if profile.state is None else profile.state[wanted],
        cpu=None if profile.cpu is None else profile.cpu[wanted],
    )
    return replace(part, summary=summary_of_part(profile.summary, part))
