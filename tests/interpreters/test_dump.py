"""Tests of dumps of sleeping programs that report their own stack.

The dump has equal frames in the right places among native ones.
"""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.interpreters.pythons import KINDS, OF_LAYOUTS, Python, pythons, running
from tests.interpreters.runs import dump, functions, record, stacks
from tests.support import name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


def said(process: subprocess.Popen[str]) -> list[list[object]]:
    assert process.stdout is not None
    stack: list[list[object]] = json.loads(process.stdout.readline())
    return stack


def python_frames(thread: dict[str, Any]) -> list[list[object]]:
    return [[frame["function"], frame["line"]] for frame in thread["frames"] if frame["kind"] == "python"]


@pytest.mark.parametrize(("python", "where"), pairs(pythons(), ["main", "thread"]), ids=name_of)
def test_dump_shows_the_stack_that_the_program_wrote_down(python: Python, where: str) -> None:
    with running(python, "ladder.py", where) as process:
        stack = said(process)
        threads = dump(process.pid, "--native", "all")["threads"]
    thread = next(t for t in threads if ["leaf", stack[0][1]] in python_frames(t))
    assert python_frames(thread) == stack
    assert thread["end"] == "root"
    assert thread["interpreter"]["merge"] is None
    assert all(t["interpreter"]["merge"] is None and t["end"] == "root" for t in threads)
    check_callbacks(thread["frames"])


def check_callbacks(frames: list[dict[str, Any]]) -> None:
    """Assert that a C function with a callback stands between its caller and the function that it calls."""
    names = [frame["function"] or "?" for frame in frames]
    kinds = [frame["kind"] for frame in frames]
    for inner, outer in (("called_by_ctypes", "by_ctypes"), ("pair", "by_reduce"), ("key", "by_sorted")):
        between = kinds[names.index(inner) + 1 : names.index(outer)]
        assert between, f"{outer} calls {inner} through C"
        assert "python" not in between
    modules = [frame["module"] or "" for frame in frames]
    assert "ffi" in "".join(modules[names.index("called_by_ctypes") : names.index("by_ctypes")])


@pytest.mark.parametrize("python", [p for p in OF_LAYOUTS if p.minor >= 12], ids=lambda python: python.name)
def test_trampolines_of_perf_are_no_frames_of_their_own(python: Python) -> None:
    with running(python, "ladder.py", env={"PYTHONPERFSUPPORT": "1"}) as process:
        stack = said(process)
        (thread,) = dump(process.pid)["threads"]
    assert python_frames(thread) == stack
    assert thread["interpreter"]["merge"] is None
    assert not any((frame["function"] or "").startswith("py::") for frame in thread["frames"])


@pytest.mark.parametrize("python", [p for p in pythons() if p.minor >= 14], ids=lambda python: python.name)
def test_code_that_pythons_own_compiler_made_is_no_obstacle(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    with running(python, "calls.py", env={"PYTHON_JIT": "1"}) as process:
        assert process.stdout is not None
        callers = {name: set(calling) for name, calling in json.loads(process.stdout.readline()).items()}
        record(process.pid, output)
    found = stacks(output)
    assert found
    cut = sum(count for frames, count in found if frames[0].startswith("["))
    assert cut <= 2 + sum(count for _, count in found) // 100, "samples before the evaluator was met once without it"
    for frames, _ in found:
        for caller, callee in pairwise(functions(frames, "calls.py")):
            assert caller in callers[callee]


@KINDS
def test_frames_of_sub_interpreters_stand_where_they_run(python: Python) -> None:
    with running(python, "sub_interpreter.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (thread,) = dump(process.pid, "--native", "all")["threads"]
    names = [name for name, _ in python_frames(thread)]
    assert names[:2] == ["inside", "<module>"]
    assert names[-2:] == ["outside", "<module>"]
    assert thread["interpreter"]["merge"] is None
