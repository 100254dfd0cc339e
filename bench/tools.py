"""The interface of a profiler for the benchmarks: how to start it on a process, how to count its samples, and its
cost.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Got:
    """The result of a profiler: its number of samples, and how many of them have stacks that end at a root (None if the
    profiler does not report that).
    """

    samples: int
    whole: int | None


@dataclass(frozen=True)
class Recorder:
    """A profiler that records a process.

    Attributes:
        name: Name of the profiler.
        record: Function that returns the command to sample a pid, given a rate in Hz, a length in seconds, and a
            folder.
        post: Function that returns the command to make the recording in a folder readable, None if it is readable.
        got: Function that counts the samples in the folder where the commands ran. It raises OSError or ValueError if
            they failed.
        only: Names of the targets on which the profiler works, empty for all.
    """

    name: str
    record: Callable[[int, float, float, Path], list[str]]
    post: Callable[[Path], list[str]] | None
    got: Callable[[Path], Got]
    only: frozenset[str] = frozenset()


def found(recorder: Recorder, target: str) -> bool:
    program = recorder.record(0, 1, 1, Path())[0]
    here = program == sys.executable or shutil.which(program) is not None
    return here and (not recorder.only or target in recorder.only)


@dataclass(frozen=True)
class Dumper:
    """A tool that prints the stacks of a process. `proof` is a text that its output contains if it worked."""

    name: str
    command: Callable[[int], list[str]]
    proof: str

    @property
    def possible(self) -> bool:
        program = self.command(0)[0]
        return program == sys.executable or shutil.which(program) is not None


@dataclass(frozen=True)
class Cost:
    """The cost of a command and its children: CPU seconds, elapsed seconds, maximum resident memory of one process in
    KB. It also has the output.
    """

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
