"""The profilers that are compared: how to start each on a process, and how to count what it got.

Each tool is a function (pid, rate, seconds, folder) -> Tool; a tool that is not installed is left out of the table.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Recorder:
    """record: command that samples pid for some seconds. post: commands that make its recording readable.

    count: samples obtained, from the folder where the commands ran; None where the tool does not say.
    """

    name: str
    record: Callable[[int, float, float, Path], list[str]]
    post: Callable[[Path], list[str] | None]
    count: Callable[[Path], int | None]


def _pyprof() -> list[str]:
    return [sys.executable, "-m", "pyprof"]


def _pyprof_samples(folder: Path) -> int | None:
    import json

    return int(json.loads((folder / "summary.json").read_text())["samples"])


def _collapsed_samples(folder: Path) -> int | None:
    text = (folder / "out").read_text(errors="replace")
    return sum(int(n) for n in re.findall(r" (\d+)$", text, re.M))


def _perf_samples(folder: Path) -> int | None:
    text = (folder / "script").read_bytes()
    return len(re.findall(rb"^\S.*:\s*$", text, re.M))


def _pyprof_by(collector: str) -> Recorder:
    return Recorder(
        f"pyprof --collector {collector}",
        lambda pid, rate, seconds, folder: [
            *_pyprof(), "record", "-q", "-p", str(pid), "-r", f"{rate:g}", "-d", f"{seconds:g}",
            "--collector", collector, "-f", "collapsed", "-o", str(folder / "out"),
            "--summary", str(folder / "summary.json"),
        ],
        lambda folder: None,
        _pyprof_samples,
    )  # fmt: skip


PYPROF = (_pyprof_by("perf"), _pyprof_by("ptrace"))

PERF = Recorder(
    "perf --call-graph dwarf + script",
    lambda pid, rate, seconds, folder: [
        "perf", "record", "-q", "-e", "cpu-clock:u", "-F", f"{rate:g}", "--call-graph", "dwarf", "-p", str(pid),
        "-o", str(folder / "perf.data"), "--", "sleep", f"{seconds:g}",
    ],
    lambda folder: ["sh", "-c", f"perf script -i {folder / 'perf.data'} > {folder / 'script'} 2>/dev/null"],
    _perf_samples,
)  # fmt: skip

PY_SPY = Recorder(
    "py-spy --native",
    lambda pid, rate, seconds, folder: [
        "py-spy", "record", "--native", "-p", str(pid), "-r", f"{rate:.0f}", "-d", f"{seconds:.0f}",
        "-f", "raw", "-o", str(folder / "out"),
    ],
    lambda folder: None,
    _collapsed_samples,
)  # fmt: skip


def found(recorder: Recorder) -> bool:
    program = recorder.record(0, 1, 1, Path())[0]
    return program == sys.executable or shutil.which(program) is not None


DUMPERS: dict[str, Callable[[int], list[str]]] = {
    "pyprof dump": lambda pid: [*_pyprof(), "dump", "-p", str(pid)],
    "eu-stack": lambda pid: ["eu-stack", "-p", str(pid)],
    "gdb": lambda pid: ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"],
    "py-spy dump --native": lambda pid: ["py-spy", "dump", "--native", "--pid", str(pid)],
}
"""One-shot dumps: the first stack after the start of a command, names included."""


def cpu_seconds(command: list[str], timeout: float) -> tuple[float, float]:
    """Run a command; (CPU seconds of it and its children, elapsed seconds)."""
    import resource
    import time

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        time.perf_counter() - start,
    )
