"""Tests of formats that repeat each stack: deep stacks lose their middle, which a marker shows."""

from __future__ import annotations

import numpy as np

from pyprof.exporters.depth_limit import distinct_stacks, limit_stack_depth
from pyprof.model.marker_frames import LEFT_OUT
from tests.exporters.profiles import Builder, code, deep


def test_profile_that_is_small_enough_stays_as_it_is() -> None:
    profile = deep(2000, 20)
    assert limit_stack_depth(profile, profile.stack) is profile


def test_deep_stacks_lose_their_middle_and_nothing_else() -> None:
    profile = deep(20_000, 20)
    short = limit_stack_depth(profile, profile.stack, len(profile.stack) * 1000)
    for before, after in zip(profile.stack.tolist(), short.stack.tolist(), strict=True):
        old, new = [frame.title for frame in profile.path(before)], [frame.title for frame in short.path(after)]
        assert new == [*old[:500], LEFT_OUT.title, *old[-500:]]
    assert np.array_equal(short.values, profile.values)
    assert (short.parent[1:] < np.arange(1, len(short.parent))).all()


def test_shallow_stacks_beside_deep_ones_stay_whole() -> None:
    builder = Builder()
    main, work, recurse = code("main", rel=0x10), code("work", rel=0x20), code("recurse", rel=0x30)
    builder.sample(builder.node([main, work]))
    node = builder.node([main])
    for _ in range(5000):
        node = builder.node([recurse], node)
    builder.sample(node)
    profile = builder.build()
    short = limit_stack_depth(profile, distinct_stacks(profile), 1000)
    paths = [[frame.title for frame in short.path(leaf)] for leaf in short.stack.tolist()]
    assert sorted(len(path) for path in paths)[0] == 2
    assert sorted(len(path) for path in paths)[1] < 1002
    assert [LEFT_OUT.title in path for path in sorted(paths, key=len)] == [False, True]
