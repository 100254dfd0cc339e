"""Tests of collapsed stacks: each stack keeps its frames and its count, whatever stacks surround it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pyprof.importers.collapsed import read_collapsed

STACKS = st.lists(
    st.tuples(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6).map(tuple), st.integers(1, 9)),
    min_size=1,
    max_size=30,
)


@given(STACKS)
def test_stacks_in_any_order_keep_their_frames_and_counts(stacks: list[tuple[tuple[str, ...], int]]) -> None:
    data = "".join(f"{';'.join(names)} {count}\n" for names, count in stacks).encode()
    profile = read_collapsed(data, "title")
    expected: Counter[tuple[str, ...]] = Counter()
    for names, count in stacks:
        expected[names] += count
    found: Counter[tuple[str, ...]] = Counter()
    for leaf, count in zip(profile.stack.tolist(), profile.values[:, -1].tolist(), strict=True):
        found[tuple(frame.title for frame in profile.path(leaf))] += count
    assert found == expected
    prefixes = {names[: at + 1] for names in expected for at in range(len(names))}
    assert len(profile.parent) == len(prefixes) + 1
