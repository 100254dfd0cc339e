"""What `pyprof doctor` says of a Python process, and which collector `auto` takes for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyprof.session.runtimes import perf_trampoline
from tests.interpreters.pythons import SOME, Python, running
from tests.interpreters.runs import record


def said_of(pid: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pyprof", "doctor", str(pid)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout


@SOME
def test_version_and_threads_are_named(python: Python) -> None:
    with running(python, "calls.py", "2") as process:
        assert process.stdout is not None
        process.stdout.readline()
        text = said_of(process.pid)
    assert re.search(rf"CPython 3\.{python.minor}t? in /", text)
    assert "3 Python threads" in text
    assert ("perf trampoline is off" in text) == (python.minor >= 12)
    assert ("sys.remote_exec" in text) == (python.minor >= 14)


@SOME
@pytest.mark.parametrize("trampoline", ["", "1"])
def test_auto_stops_a_python_that_has_no_trampoline(python: Python, trampoline: str, tmp_path: Path) -> None:
    if python.minor < 12 and trampoline:
        return
    with running(python, "calls.py", env={"PYTHONPERFSUPPORT": trampoline}) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        on = perf_trampoline(process.pid)
        summary = record(process.pid, tmp_path / "out.collapsed", "--collector", "auto")
    assert on == bool(trampoline)
    by_stops = [note for note in summary["notes"] if "without a perf trampoline" in note]
    assert bool(by_stops) == (not trampoline)
    text = (tmp_path / "out.collapsed").read_text()
    assert "leaf (calls.py)" in text or ("py::leaf:" in text and trampoline)
