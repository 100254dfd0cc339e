"""Lanes that are alike by their sums are so by all their words."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyprof.session import alike as module
from pyprof.session.alike import alike

Lane = tuple[tuple[tuple[int, int], ...], int]
"""Frames outside the innermost one as (word, sp), and the kind."""


def groups(lanes: list[Lane], rng: random.Random) -> list[int]:
    """Innermost frames are any."""
    stacks = [[(rng.getrandbits(64), rng.getrandbits(40)), *frames] for frames, _ in lanes]
    word, sp = np.array([frame for stack in stacks for frame in stack], np.uint64).T
    end = np.cumsum([len(stack) for stack in stacks])
    begin = end - [len(stack) for stack in stacks]
    kinds = np.array([kind for _, kind in lanes], np.int64)
    found: list[int] = alike(begin, end, np.ascontiguousarray(word), np.ascontiguousarray(sp), kinds).tolist()
    return found


def some_lanes(rng: random.Random) -> list[Lane]:
    """Most of them come more than once; many differ in one word, one length or their kind only."""
    frames = [(1 << 57 | rng.randrange(4), 8 * rng.randrange(4)) for _ in range(1200)]
    made = []
    for _ in range(200):
        length = rng.choice([1, 1, 2, 2, 3, 30, 1100])
        own = frames[:length]
        if rng.random() < 0.5:
            own[rng.randrange(length)] = rng.choice(frames)
        made.append((tuple(own), rng.randrange(2)))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_equal_frames_and_kinds(seed: int) -> None:
    rng = random.Random(seed)
    lanes = some_lanes(rng)
    found = groups(lanes, rng)
    assert len({*zip(found, lanes, strict=True)}) == len({*found}) == len({*lanes})


def test_lanes_whose_sums_are_equal_by_design_are_not_taken_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target may choose its addresses so."""
    rng = random.Random(1)
    lanes = some_lanes(rng)
    monkeypatch.setattr(module, "_PLACES", np.zeros(4, np.uint64))
    monkeypatch.setattr(module, "_MIX", np.uint64(0))
    by_group: dict[int, set[Lane]] = {}
    for group, lane in zip(groups(lanes, rng), lanes, strict=True):
        by_group.setdefault(group, set()).add(lane)
    assert len(by_group) > 1
    assert all(len(those) == 1 for those in by_group.values())
