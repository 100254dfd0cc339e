"""Tests of threads that run one interpreter inside another.

One stack has the frames of both, with and without stops.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.interpreters.cpython.frames_by_evaluator_call import sort_runs
from pyprof.model.interpreter_frames import FunctionPlace, Run
from tests.collapsed import Stacks
from tests.interpreters.pythons import OF_LAYOUTS, Python, running
from tests.interpreters.runs import count, functions, record, stacks
from tests.support import name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

INNER = ["<module>", "inside", "spin"]
FREED = "[function freed or swapped out before its name was read]"
"""Name of a frame whose code object no longer exists, because the test compiles the code for each run."""
LEAST = {"bpf": 0.8, "ptrace": 0.5}
"""Minimum share of stacks with the inner interpreter's functions.

The ptrace collector lists thread states only now and then, and the threads live for 0.1 s.
"""
KNOWN = [python for python in OF_LAYOUTS if python.minor >= 11]
"""Interpreters of which BPF reads the frames of both. Up to 3.10 it reads those of one only."""


def names(frames: list[str]) -> list[str]:
    return [frame.partition(" (")[0] for frame in frames]


def inner(frames: list[str]) -> list[str]:
    """Return the functions of the sub-interpreter, whose code has no file."""
    behind = names(frames[frames.index("run (sub_interpreter.py)") + 1 :])
    return [name for name in behind if name in (*INNER, FREED)]


@pytest.mark.parametrize(
    ("python", "collector"),
    pairs(KNOWN, ["bpf", "ptrace"]),
    ids=name_of,
)
def test_frames_of_both_interpreters_are_in_one_stack(python: Python, collector: str, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    wanted = (
        1 if python.minor == 11 else 2
    )  # in 3.11 all interpreters share a GIL, which one thread nearly always holds

    def working(found: Stacks) -> Stacks:
        return [(frames, n) for frames, n in found if "run (sub_interpreter.py)" in frames]

    def enough(found: Stacks) -> bool:
        named = [(frames, n) for frames, n in working(found) if inner(frames) == INNER]
        return count(named) > 200 and len({frames[0] for frames, _ in named}) >= wanted

    with running(python, "sub_interpreter.py", "works") as process:
        assert process.stdout is not None
        process.stdout.readline()
        options = "--threads", "--native", "all", "--collector", collector
        summary = record(process.pid, output, *options, until=enough)
    found = stacks(output)
    assert enough(found)
    for frames, _ in working(found):
        for got, function in zip(inner(frames), INNER, strict=False):
            assert got in (FREED, function), frames
        assert functions(frames, "sub_interpreter.py")[-2:] == ["works", "run"], frames
    whole = [(frames, n) for frames, n in working(found) if len(inner(frames)) == len(INNER)]
    assert count(whole) > LEAST[collector] * count(working(found)), summary["errors"]
    marked = sum(n for frames, n in whole if any(frame.startswith("[merge") for frame in frames))
    assert marked <= count(whole) // 50, summary["errors"]


def test_functions_below_a_recursion_that_is_cut_stand_inside_it(tmp_path: Path) -> None:
    python = next(python for python in KNOWN if python.minor >= 12)
    output = tmp_path / "out.collapsed"

    def cut(found: Stacks) -> Stacks:
        return [
            (frames, n) for frames, n in found if "more than 1,024 functions" in frames[0] and INNER[1] in names(frames)
        ]

    def enough(found: Stacks) -> bool:
        return count(cut(found)) > 20

    with running(python, "sub_interpreter.py", "deep") as process:
        assert process.stdout is not None
        process.stdout.readline()
        record(process.pid, output, "--collector", "bpf", until=enough)
    found = cut(stacks(output))
    assert count(found) > 20
    for frames, _ in found:
        assert functions(frames, "sub_interpreter.py")[:1] == ["deep"], frames[:8]
        assert names(frames).index(INNER[1]) > names(frames).index("run"), frames[-8:]


def test_run_without_a_mark_stays_outside_of_the_one_before_it() -> None:
    inner = [Run(mark, (FunctionPlace(mark),)) for mark in (0x100, 0x200)]
    outer = [Run(mark, (FunctionPlace(mark + 1),)) for mark in (0x300, 0)]
    assert sort_runs(inner + outer) == sort_runs(outer + inner) == inner + outer
    assert sort_runs(inner + outer[1:]) == inner + outer[1:]
