"""Tests of dozens of ways to call Python from native code, nested in a random order: frames equal those of the target.

The target reports its own stack. The native functions that call Python stand in their places.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any

import pytest

from tests.interpreters.extensions import SOURCES, import_path, numpy
from tests.interpreters.pythons import KINDS, OLDEST_AND_NEWEST, Python, running
from tests.interpreters.runs import dump

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

Frame = dict[str, Any]
SEED = int(os.environ.get("PYPROF_TEST_SEED", "1"))
"""Seed of the order of calls."""


PYX_CALLS = {
    n
    for n, line in enumerate((SOURCES / "cython_rungs.pyx").read_text().splitlines(), 1)
    if "(" in line or "def" in line
}


def climbing(python: Python, *arguments: str) -> Any:
    path = os.pathsep.join(import_path(python))
    return running(python, "rungs.py", *arguments, env={"PYTHONPATH": path}, cwd=numpy(python.minor))


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    truth: dict[str, Any] = json.loads(process.stdout.readline())
    return truth


def of_python(frames: list[Frame]) -> list[list[object]]:
    return [[frame["function"], frame["file"], frame["line"]] for frame in frames if frame["kind"] == "python"]


def check(frames: list[Frame], truth: dict[str, Any]) -> None:
    """Assert that the frames of a dump, from leaf to root, equal those that the program reports."""
    begin = next(n for n, frame in enumerate(frames) if frame["kind"] == "python" and frame["file"] != "<string>")
    frames = frames[begin:]
    assert of_python(frames) == truth["stack"]
    outward = iter(enumerate(frames))
    for rung, claims in truth["through"]:
        inside = 0
        for at, frame in outward:
            if frame["kind"] == "python" and frame["function"].endswith("inside"):
                inside = at
            elif frame["kind"] == "python" and frame["function"] == rung:
                break
        else:
            raise AssertionError(f"{rung} is not in the stack")
        between = [f"{f['function']} {f['module']}" for f in frames[inside:at] if f["kind"] != "python"]
        found = iter(reversed(between))
        for f in frames[inside:at]:
            if f["kind"] != "python" and (f["file"] or "").endswith(".pyx"):
                assert f["line"] in PYX_CALLS, f
        assert all(any(claim.removeprefix("module:") in name for name in found) for claim in claims), (
            rung,
            claims,
            between,
        )


def dumped(process: subprocess.Popen[str], truth: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all threads: first the reported one, last those without Python."""
    threads: list[dict[str, Any]] = dump(process.pid, "--native", "all")["threads"]
    innermost = truth["stack"][0]
    threads.sort(key=lambda thread: (innermost not in of_python(thread["frames"]), thread["interpreter"] is None))
    for thread in threads:
        python = thread["interpreter"]  # None for a thread of a library without Python
        assert python is None or python["merge"] is None, python
        assert thread["end"] == "root"
    return threads


@KINDS
def test_frames_and_the_native_ones_between_them_are_those_that_the_program_knows(python: Python) -> None:
    with climbing(python, str(SEED + python.minor), "60", "sleep", "thread") as process:
        truth = said(process)
        time.sleep(0.05)
        check(dumped(process, truth)[0]["frames"], truth)


@OLDEST_AND_NEWEST
def test_frames_of_a_thread_that_runs_are_those_that_the_program_knows(python: Python) -> None:
    """Dump the main thread in a C function that has the GIL and never returns."""
    with climbing(python, str(SEED), "60", "c_spin") as process:
        truth = said(process)
        time.sleep(0.05)
        check(dumped(process, truth)[0]["frames"], truth)
