"""Tests of sleeping threads against py-spy, for the versions that it supports."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interpreters.pythons import OF_LAYOUTS, Python, running
from tests.interpreters.runs import dump
from tests.support import missing, name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

NEWEST = 13
"""Newest minor version that py-spy supports."""

Frames = list[tuple[str, str, int]]


def py_spy(pid: int) -> dict[int, Frames]:
    """Return (function, file name, line) of each thread from leaf to root, without the interpreter's internal
    frames.
    """
    program = Path(sys.executable).with_name("py-spy")
    if not program.exists():
        missing("needs py-spy: pip install -e '.[dev]'")
    done = subprocess.run(
        [program, "dump", "-p", str(pid), "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    return {
        thread["os_thread_id"]: [
            (frame["name"].rpartition(".")[2], frame["short_filename"] or frame["filename"], frame["line"])
            for frame in thread["frames"]
            if frame["filename"] not in ("__init__", "<shim>")
        ]
        for thread in json.loads(done.stdout)
    }


def ours(pid: int) -> dict[int, Frames]:
    return {
        thread["tid"]: [
            (frame["function"].rpartition(".")[2], Path(frame["file"]).name, frame["line"])
            for frame in thread["frames"]
            if frame["kind"] == "python"
        ]
        for thread in dump(pid)["threads"]
    }


SUPPORTED = [python for python in OF_LAYOUTS if python.minor <= NEWEST]


@pytest.mark.parametrize(("python", "program"), pairs(SUPPORTED, ["ladder.py", "server.py"]), ids=name_of)
def test_sleeping_threads_have_the_frames_that_py_spy_finds(python: Python, program: str) -> None:
    with running(python, program, "thread") as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        found, theirs = ours(process.pid), py_spy(process.pid)
    assert {
        tid: [(name, Path(file).name, line) for name, file, line in frames] for tid, frames in theirs.items()
    } == found
