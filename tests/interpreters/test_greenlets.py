"""Greenlets and gevent: what runs and what waits on the same C stack, each in its place."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.interpreters.packages import from_pypi
from tests.interpreters.pythons import HERE, Python, pythons, running
from tests.interpreters.runs import functions, record, stacks

MARKED = pytest.mark.parametrize(
    "python",
    list({p.minor: p for p in pythons()[::-1] if p.minor >= 11}.values())[::-1],  # of two, Debian's, which is stripped
    ids=lambda python: python.name,
)
OLDER = pytest.mark.parametrize("python", [p for p in pythons() if p.minor < 11], ids=lambda python: python.name)


def recorded(
    python: Python, program: str, output: Path, *options: str
) -> tuple[dict[str, set[str]], dict[str, object]]:
    """The program's call graph, and the summary of its recording."""
    packages = from_pypi(python.minor, "greenlet", "gevent")
    with running(python, program, env={"PYTHONPATH": str(packages)}, cwd=packages) as process:
        assert process.stdout is not None
        callers = {name: set(calling) for name, calling in json.loads(process.stdout.readline()).items()}
        return callers, record(process.pid, output, *options)


@MARKED
@pytest.mark.parametrize("program", ["greenlets.py", "gevents.py"])
def test_parents_of_greenlets_stand_outside_them(python: Python, program: str, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    callers, summary = recorded(python, program, output, "--native", "all")
    found = stacks(output)
    total = sum(count for _, count in found)
    assert total > 50
    cut = sum(count for frames, count in found if frames[0].startswith("["))
    assert cut <= 2 + total // 100, summary["errors"]  # a switch moves the very stack that is looked at
    for frames, _ in found:
        names = functions(frames, program)
        if frames[0].startswith("[") or not names:
            continue
        assert names[0] == "<module>", frames
        for caller, callee in pairwise(names):
            assert caller in callers[callee], names
    seen = {name for frames, _ in found for name in functions(frames, program)}
    assert seen >= {"main", "leaf", "worker" if program == "gevents.py" else "second"}
    if program == "gevents.py":
        assert any("Hub.run" in frame for frames, _ in found for frame in frames)


@OLDER
def test_without_marks_of_parents_a_greenlet_s_own_frames_are_in_their_place(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    callers, _ = recorded(python, "greenlets.py", output, "--native", "all")
    own = 0
    for frames, count in stacks(output):
        names = functions(frames, "greenlets.py")
        for caller, callee in pairwise(names):
            assert caller in callers[callee], names
        if names[:1] in (["first"], ["second"]):
            own += count
            stub = next(at for at, frame in enumerate(frames) if "inner_bootstrap" in frame)
            first = next(at for at, frame in enumerate(frames) if frame.endswith("(greenlets.py)"))
            assert stub < first, frames
            assert frames[0].startswith("[merge: partial"), frames
    assert own > 10


def test_stack_that_a_greenlet_shares_is_whole_without_native_frames(tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    recorded(HERE, "greenlets.py", output, "--native", "none")
    whole = [frames for frames, _ in stacks(output) if "second (greenlets.py)" in frames]
    assert whole
    inner = ["main", "start", "by_key", "first", "inside", "second"]
    assert any(functions(frames, "greenlets.py")[1:7] == inner for frames in whole)
