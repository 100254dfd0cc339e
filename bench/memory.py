"""Does the memory of a long recording stay flat? As many minutes as one likes."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bench.moments import alone
from bench.targets import CHURN, THREADS8, Target

EVERY_S = 10.0


def memory(console: Console, minutes: float) -> float:
    """MB at most, of pyprof's own process while it records 8 threads at 1 kHz and while it writes."""
    options = "-r", "1000", "-o", "out.html"
    with tempfile.TemporaryDirectory() as folder, _recording(THREADS8, folder, minutes, *options) as recording:
        seen = [own for own, _ in _watched(recording.pid, minutes)]
        recording.send_signal(signal.SIGINT)
        most = max(seen)
        while recording.poll() is None:
            most = max(most, _status_mb(recording.pid, "VmHWM"))
            time.sleep(0.05)
    console.print(f"8 threads at 1,000 Hz for {minutes:g} minutes: {_course(seen)}, {most:.0f} at most\n")
    return most


def churn(console: Console, minutes: float) -> None:
    """Of both processes, while processes, threads, libraries and functions come and go, in windows of a second."""
    for collector in ("auto", "ptrace", "perf"):
        options = "-r", "100", "-s", "--every", "1", "-o", "%i.html", "--collector", collector
        with tempfile.TemporaryDirectory() as folder, _recording(CHURN, folder, minutes, *options) as recording:
            seen = list(_watched(recording.pid, minutes))
            recording.send_signal(signal.SIGINT)
        for process, course in zip(("sampler", "worker"), zip(*seen, strict=True), strict=True):
            console.print(f"{CHURN.what}, {collector}, {minutes:g} minutes, {process}: {_course(course)}")
    console.print()


@contextmanager
def _recording(target: Target, folder: str, minutes: float, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """pyprof's recording of a target that runs for longer."""
    with alone(target.build(Path(folder))(60 * minutes + 30)) as process:
        time.sleep(0.5)
        command = [sys.executable, "-m", "pyprof", "record", "-q", "-p", str(process.pid), *options]
        with subprocess.Popen(command, cwd=folder) as recording:
            yield recording
        process.kill()


def _watched(pid: int, minutes: float) -> Iterator[tuple[float, float]]:
    """MB of the sampler and of its worker, each EVERY_S."""
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        time.sleep(min(EVERY_S, max(end - time.monotonic(), 0.1)))
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        yield _status_mb(pid, "VmRSS"), sum(_status_mb(int(worker), "VmRSS") for worker in workers)


def _course(seen: Sequence[float]) -> str:
    return f"{seen[0]:.0f} MB after {EVERY_S:g} s, {seen[len(seen) // 2]:.0f} in the middle, {seen[-1]:.0f} at the end"


def _status_mb(pid: int, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith(field)), 0.0)
