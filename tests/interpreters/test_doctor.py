"""Tests of `pyprof doctor` on Python processes, and of the collector that `auto` chooses for them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from pyprof.collectors.linux import procfs
from tests import warm
from tests.interpreters.pythons import SOME, Python, running
from tests.interpreters.runs import record
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


def perf_trampoline(pid: int) -> bool:
    """Return True if the process writes a perf map with Python functions."""
    inner = procfs.read_thread_status(pid)["NSpid"].split()[-1]
    path = Path(f"/proc/{pid}/root/tmp/perf-{inner}.map")
    return path.exists() and b" py::" in path.read_bytes()


def said_of(pid: int) -> str:
    return warm.run("doctor", str(pid)).stdout


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
def test_advice_on_the_trampoline_does_what_it_says(python: Python, tmp_path: Path) -> None:
    """Run the recommended command, whose script has an unpredictable name.

    With a predictable name the target would run another user's script.
    """
    with running(python, "calls.py") as process:
        assert process.stdout is not None
        process.stdout.readline()
        text = said_of(process.pid)
        if python.minor < 14:
            assert "sys.remote_exec" not in text
            return
        (advice,) = [line for line in text.splitlines() if "sys.remote_exec" in line]
        command = advice.partition("for samples without stops: ")[2]
        for word in re.findall(r"python3\.\d+", command):
            inside = [
                need("nsenter"),
                "-t",
                str(process.pid),
                "-m",
                "-r",
            ]  # if the executable has the same path here
            command = command.replace(word, shlex.join([*inside, python.command[-1]]))
        subprocess.run(["sh", "-c", command], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True, timeout=60)
        assert len(os.listdir(tmp_path)) == 1
        while not perf_trampoline(process.pid):
            assert process.poll() is None


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
    by_stops = [note for note in summary["notes"] if "without a perf trampoline" in note["text"]]
    assert bool(by_stops) == (not trampoline)
    text = (tmp_path / "out.collapsed").read_text()
    assert "leaf (calls.py)" in text or ("py::leaf:" in text and trampoline)
