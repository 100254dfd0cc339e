"""Helpers that run pyprof as a user does: as a separate process with an exit code and two output streams."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.warm import run as pyprof

__all__ = [
    "BUSY",
    "PYPROF",
    "SLEEPY",
    "WITHOUT_BPF",
    "catches",
    "has_samples",
    "newest",
    "one_sentence",
    "pyprof",
    "python",
    "record_until",
]

PYPROF = [sys.executable, "-m", "pyprof"]


WITHOUT_BPF = ("setpriv", "--bounding-set", "-bpf,-sys_admin")
"""A command prefix that runs pyprof without the capabilities for BPF and with all other ones."""


@contextlib.contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code and yield the process once it has printed its first line."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


BUSY = "import time\nprint(flush=True)\nend = time.time() + 600\nwhile time.time() < end: sum(range(1000))"
"""Python code of a busy process, which ends by itself if a failed test leaves it behind."""
SLEEPY = "import time; print(flush=True); time.sleep(600)"


def has_samples(done: subprocess.CompletedProcess[str]) -> bool:
    """Return True if a recording of a running process has samples, which its exit code tells."""
    return done.returncode == 0


def record_until(
    so: Callable[[subprocess.CompletedProcess[str]], bool], *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `pyprof record` for longer and longer until a condition holds, and return the last run.

    On a busy machine the target may get no processor during a short recording.

    Args:
        so: The condition on a run.
        arguments: Arguments of the command, without the duration.
        cwd: The working directory of the command.
    """
    for seconds in ("0.5", "2", "8", "32"):
        done = pyprof("record", "-d", seconds, *arguments, cwd=cwd, timeout=200)
        if so(done):
            break
    return done


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error message of pyprof, and assert that it has one sentence, at most one hint and no traceback."""
    lines = done.stderr.strip().splitlines()
    assert "Traceback" not in done.stderr, done.stderr
    complaints = [line for line in lines if line.startswith("pyprof: ")]
    assert len(complaints) == 1, done.stderr
    assert all(line.startswith(("pyprof: ", "  hint: ")) for line in lines), done.stderr
    return complaints[0]


def newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime)


def catches(pid: int, number: signal.Signals) -> bool:
    """Return True if the process has a handler for a signal."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> number - 1 & 1)
