"""Tests of merging the windows of one recording into one profile."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.cli import top_snapshots as module
from pyprof.cli.top_snapshots import WindowMerger
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.function_costs import costs
from pyprof.model.profile import Profile
from tests.exporters.profiles import golden


def halves(profile: Profile) -> list[Profile]:
    """Split a profile into two windows, each with its own numbering of frames and threads."""
    middle = profile.duration_ns / 2e9
    first, second = profile.filter(end=middle), profile.filter(start=middle)
    half = profile.duration_ns // 2
    later = replace(
        second,
        start_ns=profile.start_ns + half,
        duration_ns=profile.duration_ns - half,
        modules=tuple(reversed(second.modules)),
        frames=tuple(
            replace(frame, module=len(second.modules) - 1 - frame.module) if frame.module >= 0 else frame
            for frame in second.frames
        ),
    )
    return [replace(first, duration_ns=half), later]


def spread() -> Profile:
    """Return a profile whose samples are spread over its duration."""
    profile = golden()
    times = profile.start_ns + np.arange(len(profile.stack)) * profile.duration_ns // len(profile.stack)
    return replace(profile, time_ns=times)


def stacks(profile: Profile) -> list[object]:
    return [
        (time, [frame.title for frame in profile.path(leaf)], profile.threads[thread], values)
        for time, leaf, thread, values in zip(
            profile.time_ns.tolist(),
            profile.stack.tolist(),
            profile.thread.tolist(),
            profile.values.tolist(),
            strict=True,
        )
    ]


def test_windows_merged_are_the_whole() -> None:
    profile, merging = spread(), WindowMerger()
    windows = halves(profile)
    assert all(len(window.stack) for window in windows)
    before = merging.add_window(windows[0])
    found = merging.add_window(windows[1]).profile()
    assert found is not None
    assert stacks(found) == stacks(profile)
    assert costs(found) == costs(profile)
    assert (found.start_ns, found.duration_ns, found.total) == (profile.start_ns, profile.duration_ns, profile.total)
    earlier = before.profile()
    assert earlier is not None
    assert stacks(earlier) == stacks(windows[0])


def test_span_is_of_the_newest_windows() -> None:
    merging, profile = WindowMerger(), golden()
    assert merging.add_window(profile).profile(1e9) is not None
    for _ in range(4):
        merged = merging.add_window(replace(profile, duration_ns=1_000_000_000))
    seconds = [merged.profile(span) for span in (0.1, 1, 2, 3, 0)]
    assert [each.duration_ns / 1e9 for each in seconds if each] == [1, 1, 2, 3, 7]


def test_oldest_windows_go(monkeypatch: pytest.MonkeyPatch) -> None:
    merging, profile = WindowMerger(), golden()
    monkeypatch.setattr(module, "MAX_SAMPLES", 3 * len(profile.stack))
    for _ in range(5):
        merged = merging.add_window(profile)
    assert len(merged.windows) == 3
    monkeypatch.setattr(module, "MAX_NODES", 1)
    assert len(merging.add_window(profile).windows) == 1
    assert len(merging.add_window(profile).windows) == 1
