"""The times of the main events in a recording by pyprof: first sample, last sample, written file."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.tools import run


@dataclass(frozen=True)
class Moments:
    """Times and costs of a recording by pyprof.

    Attributes:
        first_s: Time in seconds from the start of the command to the first sample.
        written_s: Time in seconds from the last sample to the end of the command.
        cpu_s: CPU time of the command in seconds.
        samples: Number of samples.
    """

    first_s: float
    written_s: float
    cpu_s: float
    samples: int


def moments(folder: Path, pid: int, rate: float, seconds: float, *options: str) -> Moments | None:
    """Record a process by pyprof and return the times of the recording, or None if it failed."""
    import pyprof

    recording = folder / "out.pyprof"
    recording.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pyprof", "record", "-q", "-p", str(pid), "-r", f"{rate:g}", "-d", f"{seconds:g}",
        "-o", str(recording), *options,
    ]  # fmt: skip
    start = time.time_ns()
    cost = run(command, seconds + 120)
    end = time.time_ns()
    if not cost.worked or not recording.exists():
        return None
    times = pyprof.load(recording).time_ns
    if not len(times):
        return None
    return Moments((int(times.min()) - start) / 1e9, (end - int(times.max())) / 1e9, cost.cpu_s, len(times))


def alone(command: list[str]) -> subprocess.Popen[str]:
    """Start a target program without a profiler, and discard its output."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
