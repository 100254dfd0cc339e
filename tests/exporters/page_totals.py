"""Expected contents of the page's trees, computed directly from the profile."""

from __future__ import annotations

from collections import Counter

from pyprof.exporters.display_names import frame_levels, process_name, thread_name
from pyprof.model.profile import Profile
from pyprof.model.untrusted_text import clean_text
from tests.exporters.support import PLAIN

Paths = dict[tuple[str, ...], float]


def expected(
    profile: Profile, by_thread: bool = False, bottom_up: bool = False, hidden: frozenset[int] = frozenset()
) -> Paths:
    """Return what Page.paths must return, computed directly from the profile."""
    sums: Counter[tuple[str, ...]] = Counter({(): 0})
    for thread, leaf, values in profile.totals():
        value = int(values[-1])
        if thread in hidden:
            continue
        stack = [level.name for frame in profile.path(leaf) for level in frame_levels(profile, frame, PLAIN)]
        stack = [clean_text(name) for name in stack]
        info = profile.threads[thread]
        groups = [process_name(info)] * (len(profile.processes) > 1) + [thread_name(info)] if by_thread else []
        path = tuple(groups + (stack[::-1] if bottom_up else stack))
        for depth in range(len(path) + 1):
            sums[path[:depth]] += value
    return {path: value for path, value in sums.items() if value or not path}


def weighty(paths: Paths) -> Paths:
    return {path: value for path, value in paths.items() if value or not path}
