"""Dumps of sleeping programs that wrote their own stack down: the same frames, in their places between native ones."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.interpreters.pythons import EACH, Python, running


def dump(pid: int, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pyprof", "dump", "-p", str(pid), "--json", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def said(process: subprocess.Popen[str]) -> list[list[object]]:
    assert process.stdout is not None
    stack: list[list[object]] = json.loads(process.stdout.readline())
    return stack


def python_frames(thread: dict[str, Any]) -> list[list[object]]:
    return [[frame["function"], frame["line"]] for frame in thread["frames"] if frame["kind"] == "python"]


@EACH
@pytest.mark.parametrize("where", ["main", "thread"])
def test_dump_shows_the_stack_that_the_program_wrote_down(python: Python, where: str) -> None:
    with running(python, "ladder.py", where) as process:
        stack = said(process)
        threads = dump(process.pid, "--native", "all")["threads"]
    thread = next(t for t in threads if ["leaf", stack[0][1]] in python_frames(t))
    assert python_frames(thread) == stack
    assert thread["end"] == "root"
    assert thread["python"]["merge"] is None
    assert all(t["python"]["merge"] is None and t["end"] == "root" for t in threads)


@EACH
def test_each_run_of_frames_stands_inside_one_evaluator(python: Python) -> None:
    """C functions that call back stand between the frame that called them and the one that they called."""
    with running(python, "ladder.py") as process:
        said(process)
        frames = dump(process.pid, "--native", "all")["threads"][0]["frames"]
    names = [frame["function"] or "?" for frame in frames]
    kinds = [frame["kind"] for frame in frames]
    for inner, outer in (("called_by_ctypes", "by_ctypes"), ("pair", "by_reduce"), ("key", "by_sorted")):
        between = kinds[names.index(inner) + 1 : names.index(outer)]
        assert between, f"{outer} calls {inner} through C"
        assert "python" not in between
    modules = [frame["module"] or "" for frame in frames]
    assert "ffi" in "".join(modules[names.index("called_by_ctypes") : names.index("by_ctypes")])
