"""Run pyprof as a user does: its own process, its exit code, its two streams."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.warm import run as pyprof

__all__ = ["BUSY", "PYPROF", "SLEEPY", "WITHOUT_BPF", "newest", "one_sentence", "pyprof", "python"]

PYPROF = [sys.executable, "-m", "pyprof"]


WITHOUT_BPF = ("setpriv", "--bounding-set", "-bpf,-sys_admin")
"""A command before pyprof: it runs with all other rights that we have."""


@contextlib.contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    """A python process that has printed its first line."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


BUSY = "import time\nprint(flush=True)\nend = time.time() + 120\nwhile time.time() < end: sum(range(1000))"
"""Ends by itself, should a failed test leave it behind."""
SLEEPY = "import time; print(flush=True); time.sleep(600)"


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What pyprof complained; fails if it is a traceback or not one sentence and at most one hint."""
    lines = done.stderr.strip().splitlines()
    assert "Traceback" not in done.stderr, done.stderr
    complaints = [line for line in lines if line.startswith("pyprof: ")]
    assert len(complaints) == 1, done.stderr
    assert all(line.startswith(("pyprof: ", "  hint: ")) for line in lines), done.stderr
    return complaints[0]


def newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
