"""Tests of greenlet and gevent: running and suspended greenlets of one C stack are in their places."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.chance import most
from tests.collapsed import Stacks
from tests.interpreters.packages import from_pypi
from tests.interpreters.pythons import OF_LAYOUTS, PROGRAMS, Python, pythons, running
from tests.interpreters.runs import count, functions, record, seen, stacks
from tests.support import name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

CUT = 0.015
"""Maximum share of truncated samples, because a switch moves the sampled stack.

Measured: none for a program that switches every few ms, 0.5 to 1.2 % with the loop of gevent.
"""
LAYOUTS = [python for python in OF_LAYOUTS if python.minor >= 11]
"""Interpreters with marks of parents."""
OLDER = [python for python in OF_LAYOUTS if python.minor < 11]
COLLECTORS = ["ptrace", "bpf"]


def recorded(
    python: Python, program: str, output: Path, *options: str, until: Callable[[Stacks], bool]
) -> tuple[dict[str, set[str]], dict[str, Any]]:
    """Return the program's call graph and the summary of its recording."""
    packages = from_pypi(python.minor, "greenlet", "gevent")
    with running(python, program, env={"PYTHONPATH": str(packages)}, cwd=packages) as process:
        assert process.stdout is not None
        callers = {name: set(calling) for name, calling in json.loads(process.stdout.readline()).items()}
        return callers, record(process.pid, output, *options, until=until)


BY_LAYOUT = [(python, "gevents.py" if python is LAYOUTS[-1] else "greenlets.py") for python in LAYOUTS]
PARENTS = [(program, python, collector) for (python, program), collector in pairs(BY_LAYOUT, COLLECTORS)]
"""Programs, interpreters and collectors: plain greenlets with the older layouts, the loop of gevent with the newest.

The kernel program reads each layout in tests/bpf/test_on_cores.py.
"""


@pytest.mark.parametrize(("program", "python", "collector"), PARENTS, ids=name_of)
def test_parents_of_greenlets_stand_outside_them(python: Python, program: str, collector: str, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"

    def enough(found: Stacks) -> bool:
        wanted = {"main", "leaf", "worker" if program == "gevents.py" else "second"}
        hub = any("Hub.run" in frame for frames, _ in found for frame in frames)
        return count(found) > 200 and seen(found, program) >= wanted and (hub or program != "gevents.py")

    options = "--native", "all", "--collector", collector
    callers, summary = recorded(python, program, output, *options, until=enough)
    found = stacks(output)
    assert enough(found)
    assert bool(summary["stops"]["count"]) == (collector == "ptrace")
    cut = sum(n for frames, n in found if frames[0].startswith("["))
    assert cut <= most(CUT, count(found)), summary["errors"]
    for frames, _ in found:
        names = functions(frames, program)
        if frames[0].startswith("[") or not names:
            continue
        assert names[0] == "<module>", frames
        for caller, callee in pairwise(names):
            assert caller in callers[callee], names


@pytest.mark.parametrize(("python", "collector"), pairs(OLDER, COLLECTORS), ids=name_of)
def test_without_marks_of_parents_a_greenlet_s_own_frames_are_in_their_place(
    python: Python, collector: str, tmp_path: Path
) -> None:
    output = tmp_path / "out.collapsed"

    def enough(found: Stacks) -> bool:
        begin = [functions(frames, "greenlets.py")[:1] for frames, n in found for _ in range(n)]
        return begin.count(["first"]) + begin.count(["second"]) > 10

    options = "--native", "all", "--collector", collector
    callers, summary = recorded(python, "greenlets.py", output, *options, until=enough)
    assert enough(stacks(output))
    assert bool(summary["stops"]["count"]) == (collector == "ptrace")
    for frames, _ in stacks(output):
        names = functions(frames, "greenlets.py")
        for caller, callee in pairwise(names):
            assert caller in callers[callee], names
        if names[:1] in (["first"], ["second"]):
            stub = next((at for at, frame in enumerate(frames) if "inner_bootstrap" in frame), None)
            assert stub is not None, frames
            first = next(at for at, frame in enumerate(frames) if frame.endswith("(greenlets.py)"))
            assert stub < first, frames
            assert frames[0].startswith("[merge: partial"), frames


NEVER_STOPPED = [python for python in pythons() if python.minor in (11, 13)]


@pytest.mark.parametrize(("python", "options"), pairs(NEVER_STOPPED, [(), ("--mode", "wall")]), ids=name_of)
def test_stack_that_a_greenlet_shares_is_whole_without_native_frames(
    python: Python, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Record without stops."""
    output = tmp_path / "out.collapsed"
    inner = ["main", "start", "by_key", "first", "inside", "second"]

    def enough(found: Stacks) -> bool:
        return any(functions(frames, "greenlets.py")[1:7] == inner for frames, _ in found)

    options = "--native", "none", "--collector", "auto", *options
    _, summary = recorded(python, "greenlets.py", output, *options, until=enough)
    assert enough(stacks(output))
    assert any(each["reason"] == "never_stopped" for each in summary["notes"]), summary["notes"]


def test_program_that_imports_greenlet_late_is_stopped_if_waits_are_recorded(tmp_path: Path) -> None:
    """Import greenlet during the recording.

    Only a recording that begins with greenlets loads the BPF program for them.
    """
    python = next(python for python in pythons() if python.minor == 13 and not python.suite)
    packages = from_pypi(python.minor, "greenlet", "gevent")
    summary = tmp_path / "summary"
    options = ["-q", "-o", str(tmp_path / "out.collapsed"), "--summary", str(summary)]
    program = str(PROGRAMS / "greenlets.py")
    code = f"import runpy, signal; signal.alarm(8); runpy.run_path({program!r}, run_name='__main__')"
    command = ["env", f"PYTHONPATH={packages}", *python.command, "-c", code]
    done = warm.run("record", "--mode", "wall", *options, "--", *command, timeout=120)
    assert done.returncode == 128 + signal.SIGALRM, done.stderr
    found = json.loads(summary.read_text())
    assert any("where waits are recorded, these are read in stops" in str(note) for note in found["notes"]), found[
        "notes"
    ]
    assert found["stops"]["count"] > 0
