"""Tests of recursions whose stacks are much longer than a stop may copy.

Stacks are complete, or truncated with a marker that names a sufficient size. No stack is wrong.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.options import CollectOptions
from tests.live.support.ladders import ladder
from tests.live.support.recording import LIFE, Recording, dump, record, running
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

DEPTH = 200_000
LENGTH = DEPTH * 48
"""Minimum size of the stack in bytes."""


def runs(stack: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the functions below the thread's start function, each with its number of repetitions."""
    own = stack[stack.index("run") :]
    return [(name, len(list(same))) for name, same in groupby(own)]


def whole(recording: Recording) -> Counter[tuple[tuple[str, int], ...]]:
    """Return the number of samples by runs of functions."""
    found: Counter[tuple[tuple[str, int], ...]] = Counter()
    for stack, count in recording.stacks.items():
        if "run" in stack:
            found[tuple(runs(stack))] += count
    return found


def some_whole(recording: Recording) -> bool:
    return sum(whole(recording).values()) >= 3


def many_whole(recording: Recording) -> bool:
    """Return True if one stop at the beginning, while the collector learns how long the stack is, counts for little."""
    return sum(whole(recording).values()) >= 10


def deep_and_other(recording: Recording) -> bool:
    """Return True if the samples have three depths, one of them deeper than a stop's copy."""
    depths = {dict(of).get("down", 0) for of in whole(recording)}
    return some_whole(recording) and len(depths) >= 3 and max(depths) > 30_000


def at_a_side(recording: Recording) -> bool:
    return any(name in ("at_left", "at_right") for of in whole(recording) for name, _ in of)


def cut(recording: Recording) -> dict[str, int]:
    """Return the number of samples by truncation marker."""
    found: Counter[str] = Counter()
    for stack, count in recording.stacks.items():
        if stack[0].startswith("[truncated"):
            found[stack[0]] += count
    return dict(found)


def perf_allowed() -> None:
    try:
        choose_event(os.getpid(), 0, CollectOptions())
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")


@pytest.mark.parametrize(("collector", "build"), [("ptrace", "recursion"), ("perf", "recursion_fp")])
def test_recursion_that_works_at_its_bottom_is_whole_and_small_parts_are_copied(
    collector: str, build: str, tmp_path: Path
) -> None:
    if collector == "perf":
        perf_allowed()
    with running(ladder(f"ladder_{build}"), "stay", str(DEPTH), LIFE) as program:
        recording = record(program.pid, tmp_path, "--collector", collector, seconds=2, rate=99, until=many_whole)
    found = whole(recording)
    assert many_whole(recording)
    assert {of[:3] for of in found} == {(("run", 1), ("left", 1), ("down", DEPTH + 1))}
    assert sum(found.values()) >= 0.8 * recording.summary["stops"]["count"] > 0
    assert recording.summary["trust"]["completed"] > DEPTH


def test_recursion_that_goes_up_and_down_has_only_its_own_frames(tmp_path: Path) -> None:
    with running(ladder("ladder_recursion"), "travel", str(DEPTH), LIFE) as program:
        recording = record(program.pid, tmp_path, seconds=2, rate=99, until=deep_and_other)
    found = whole(recording)
    assert deep_and_other(recording)
    for of in found:
        names = [name for name, _ in of]
        assert names in (["run"], ["run", "left"], ["run", "left", "down"])
        assert dict(of).get("down", 0) <= DEPTH + 1


def test_recursion_from_two_places_never_has_the_frames_of_the_other_one(tmp_path: Path) -> None:
    with running(ladder("ladder_recursion"), "origins", str(DEPTH), LIFE) as program:
        recording = record(program.pid, tmp_path, rate=99, until=at_a_side)
    assert at_a_side(recording)
    for of in whole(recording):
        names = [name for name, _ in of]
        for side, other in (("left", "right"), ("right", "left")):
            if f"at_{side}" in names:
                assert side in names
                assert other not in names
                assert dict(of)["down"] == DEPTH + 1
    for marker in cut(recording):
        assert re.fullmatch(r"\[truncated: --stack-size (2|4|8|16)M copies all of it\]", marker)


def test_size_that_a_marker_names_is_enough(tmp_path: Path) -> None:
    with running(ladder("ladder_recursion"), "travel", str(DEPTH), LIFE) as program:
        recording = record(program.pid, tmp_path, "--stack-size", "16M", seconds=2, rate=20, until=some_whole)
    assert not cut(recording)
    assert some_whole(recording)


def test_maximum_depth_names_a_depth_that_is_enough(tmp_path: Path) -> None:
    with running(ladder("ladder_recursion"), "stay", "50000", LIFE) as program:
        first = record(program.pid, tmp_path, "--max-depth", "20000", seconds=1, rate=20)
        (marker,) = cut(first)
        said = re.fullmatch(r"\[truncated: maximum depth, --max-depth (\d+) is enough\]", marker)
        assert said is not None
        second = record(program.pid, tmp_path, "--max-depth", said[1], seconds=1, rate=20)
    assert first.samples > 0
    assert not cut(second)
    assert {dict(of)["down"] for of in whole(second)} == {50_001}


def test_sleeper_below_a_deep_recursion_is_whole_in_a_dump() -> None:
    with running(ladder("ladder_recursion"), "sleep", str(DEPTH), LIFE) as program:
        found = dump(program.pid, "--stack-size", "1M")
    threads = [[frame["function"] for frame in thread["frames"]] for thread in found["threads"]]
    deep = [names for names in threads if "down" in names]
    assert [names.count("down") for names in deep] == [DEPTH + 1]


def in_room(recording: Recording) -> dict[tuple[str, ...], int]:
    return {stack: count for stack, count in recording.stacks.items() if "r_top" in stack}


def has_room(recording: Recording) -> bool:
    return sum(in_room(recording).values()) > 100


def test_threads_with_a_frame_larger_than_a_copy_are_whole(tmp_path: Path) -> None:
    with running(ladder("ladder_room"), "spin", LIFE) as program:
        recording = record(program.pid, tmp_path, "--collector", "ptrace", rate=199, until=has_room)
    spinning = in_room(recording)
    assert sum(spinning.values()) > 100
    assert {stack[-7:] for stack in spinning} == {
        ("begin", "with_room", "r_01", "r_02", "r_03", "r_04", "r_top"),
    }
    assert "completed" not in recording.summary["trust"]
