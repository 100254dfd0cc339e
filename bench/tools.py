"""The profilers that are compared: how to start each on a process, and how to count what it got.

A tool that is not installed is left out of the tables; one that fails has no samples, and no figures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Got:
    """samples: obtained; whole: how many of them end at a root, None where the tool does not say."""

    samples: int
    whole: int | None


@dataclass(frozen=True)
class Recorder:
    """record: command that samples a pid for some seconds. post: command that makes its recording readable, None where
    there is nothing to do. got: from the folder where the commands ran; raises OSError or ValueError if they failed.
    only: of which targets, empty for all.
    """

    name: str
    record: Callable[[int, float, float, Path], list[str]]
    post: Callable[[Path], list[str]] | None
    got: Callable[[Path], Got]
    only: frozenset[str] = frozenset()


def _pyprof() -> list[str]:
    return [sys.executable, "-m", "pyprof"]


def _pyprof_got(folder: Path) -> Got:
    summary = json.loads((folder / "summary.json").read_text())
    return Got(int(summary["samples"]), int(summary["ends"].get("root", 0)))


def _pyprof_by(collector: str) -> Recorder:
    return Recorder(
        f"pyprof --collector {collector}",
        lambda pid, rate, seconds, folder: [
            *_pyprof(), "record", "-q", "-p", str(pid), "-r", f"{rate:g}", "-d", f"{seconds:g}",
            "--collector", collector, "-o", str(folder / "out.html"), "--summary", str(folder / "summary.json"),
        ],
        None,
        _pyprof_got,
    )  # fmt: skip


_ROOTS = (b"_start", b"__clone3", b"clone3", b"__clone", b"clone", b"_dl_start_user")


def _perf_got(folder: Path) -> Got:
    """perf script: a line for each sample, its frames innermost first, an empty line."""
    samples = whole = 0
    last = b""
    with open(folder / "script", "rb") as file:
        for line in file:
            if not line.strip():
                samples += bool(last)
                words = last.split()
                whole += len(words) > 1 and words[1].split(b"+")[0] in _ROOTS
                last = b""
            else:
                last = line
    if not samples:
        raise ValueError("no samples")
    return Got(samples, whole)


def _collapsed_got(folder: Path) -> Got:
    text = (folder / "out").read_text(errors="replace")
    samples = sum(int(n) for n in re.findall(r" (\d+)$", text, re.M))
    if not samples:
        raise ValueError("no samples")
    return Got(samples, None)


def _py_spy(name: str, *options: str) -> Recorder:
    return Recorder(
        name,
        lambda pid, rate, seconds, folder: [
            "py-spy", "record", *options, "-p", str(pid), "-r", f"{rate:.0f}", "-d", f"{seconds:.0f}",
            "-f", "raw", "-o", str(folder / "out"),
        ],
        None,
        _collapsed_got,
        frozenset({"python"}),
    )  # fmt: skip


RECORDERS = (
    _pyprof_by("perf"),
    _pyprof_by("ptrace"),
    Recorder(
        "perf --call-graph dwarf + script",
        lambda pid, rate, seconds, folder: [
            "perf", "record", "-q", "-e", "cpu-clock:u", "-F", f"{rate:g}", "--call-graph", "dwarf", "-p", str(pid),
            "-o", str(folder / "perf.data"), "--", "sleep", f"{seconds:g}",
        ],
        lambda folder: ["sh", "-c", f"perf script -i {folder / 'perf.data'} > {folder / 'script'} 2>/dev/null"],
        _perf_got,
    ),
    _py_spy("py-spy --native", "--native"),
    _py_spy("py-spy"),
    _py_spy("py-spy --nonblocking", "--nonblocking"),
)  # fmt: skip


def found(recorder: Recorder, target: str) -> bool:
    program = recorder.record(0, 1, 1, Path())[0]
    here = program == sys.executable or shutil.which(program) is not None
    return here and (not recorder.only or target in recorder.only)


@dataclass(frozen=True)
class Dumper:
    """One look at a process. proof: what its output holds if it worked."""

    name: str
    command: Callable[[int], list[str]]
    proof: str

    @property
    def possible(self) -> bool:
        program = self.command(0)[0]
        return program == sys.executable or shutil.which(program) is not None


DUMPERS = (
    Dumper("pyprof dump", lambda pid: [*_pyprof(), "dump", "-p", str(pid)], "_start"),
    Dumper("eu-stack", lambda pid: ["eu-stack", "-p", str(pid)], "_start"),
    Dumper("gdb", lambda pid: ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"], "#1 "),
    Dumper("py-spy dump --native", lambda pid: ["py-spy", "dump", "--native", "--pid", str(pid)], "Thread "),
)


@dataclass(frozen=True)
class Cost:
    """Of a command and its children: CPU seconds, elapsed seconds, memory of the largest of them in KB, its output."""

    cpu_s: float
    elapsed_s: float
    memory_kb: int
    output: str
    worked: bool


def run(command: list[str], timeout: float) -> Cost:
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout
        deadline = time.monotonic() + timeout
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    worked = process.returncode == 0 and time.monotonic() < deadline
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss, output, worked)
