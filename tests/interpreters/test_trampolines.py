"""A test of samples without stops of a Python with its perf trampoline: its functions are Python frames everywhere."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.options import CollectOptions
from tests.collapsed import Stacks
from tests.interpreters.pythons import Python, pythons, running
from tests.interpreters.runs import functions, record, seen, stacks
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

NEWEST = pytest.mark.parametrize("python", [p for p in pythons() if p.minor >= 12][-1:], ids=lambda python: python.name)


@NEWEST
@pytest.mark.parametrize("native", ["all", "extensions", "none"])
def test_functions_are_python_frames_without_a_stop(python: Python, native: str, tmp_path: Path) -> None:
    try:
        choose_event(os.getpid(), 0, CollectOptions())
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")
    output = tmp_path / "out.collapsed"
    with running(python, "calls.py", env={"PYTHONPERFSUPPORT": "1"}) as process:
        assert process.stdout is not None
        callers = {name: set(calling) for name, calling in json.loads(process.stdout.readline()).items()}

        def enough(found: Stacks) -> bool:
            of_python = sum(n for frames, n in found if all(".py)" in frame for frame in frames))
            return {"leaf", "work", "deep"} <= seen(found, "calls.py") and (of_python > 10 or native != "none")

        record(process.pid, output, "--collector", "perf", "--native", native, until=enough)
    found = stacks(output)
    assert enough(found)
    assert not any("py::" in frame for frames, _ in found for frame in frames)
    for frames, _ in found:
        for caller, callee in pairwise(functions(frames, "calls.py")):
            assert caller in callers[callee], frames
    if native != "all":
        assert not any("_PyEval_" in frame for frames, _ in found for frame in frames)
