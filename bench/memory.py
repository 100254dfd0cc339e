"""Measurement of pyprof's memory in a long recording, of any number of minutes, to see whether it grows."""

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
    """Return the maximum memory in MB of all pyprof's processes while they record 8 threads at 1 kHz and write the
    file.

    Shared pages count once (Pss).
    """
    options = "-r", "1000", "-o", "out.html"
    with tempfile.TemporaryDirectory() as folder, _recording(THREADS8, folder, minutes, *options) as recording:
        seen = list(_watched(recording.pid, minutes, "smaps_rollup", "Pss:"))
        recording.send_signal(signal.SIGINT)
        together = [sum(each) for each in seen]
        most = max(together)
        while recording.poll() is None:
            most = max(most, sum(_moment(recording.pid, "smaps_rollup", "Pss:")))
            time.sleep(0.02)
    title = f"8 threads at 1,000 Hz for {minutes:g} minutes"
    console.print(f"{title}: {_course(together)}, {most:.0f} at most")
    for process, course in zip(("sampler", "worker and keeper"), zip(*seen, strict=True), strict=True):
        console.print(f"    {process}: {_course(course)}")
    console.print()
    return most


def churn(console: Console, minutes: float) -> None:
    """Print the memory of pyprof's two processes during recordings in windows of a second, while processes, threads,
    libraries and functions come and go.
    """
    for collector in ("auto", "ptrace", "perf"):
        options = "-r", "100", "-s", "--every", "1", "-o", "%i.html", "--collector", collector
        with tempfile.TemporaryDirectory() as folder, _recording(CHURN, folder, minutes, *options) as recording:
            seen = list(_watched(recording.pid, minutes, "status", "VmRSS:"))
            recording.send_signal(signal.SIGINT)
        for process, course in zip(("sampler", "worker"), zip(*seen, strict=True), strict=True):
            console.print(f"{CHURN.what}, {collector}, {minutes:g} minutes, {process}: {_course(course)}")
    console.print()


@contextmanager
def _recording(target: Target, folder: str, minutes: float, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a recording by pyprof, within the context, of a target that runs for longer."""
    with alone(target.build(Path(folder))(60 * minutes + 30)) as process:
        time.sleep(0.5)
        command = [sys.executable, "-m", "pyprof", "record", "-q", "-p", str(process.pid), *options]
        with subprocess.Popen(command, cwd=folder) as recording:
            yield recording
        process.kill()


def _watched(pid: int, minutes: float, file: str, field: str) -> Iterator[tuple[float, float]]:
    """Yield the memory in MB of the sampler, and of its worker with the worker's children, every EVERY_S seconds."""
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        time.sleep(min(EVERY_S, max(end - time.monotonic(), 0.1)))
        yield _moment(pid, file, field)


def _moment(pid: int, file: str, field: str) -> tuple[float, float]:
    return _mb(pid, file, field), sum(_mb(each, file, field) for each in _below(pid))


def _below(pid: int) -> list[int]:
    """Return the children of a process and their children: the file broker is a child of the worker."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        children = []
    return children + [each for child in children for each in _below(child)]


def _course(seen: Sequence[float]) -> str:
    return f"{seen[0]:.0f} MB after {EVERY_S:g} s, {seen[len(seen) // 2]:.0f} in the middle, {seen[-1]:.0f} at the end"


def _mb(pid: int, file: str, field: str) -> float:
    """Return a field of /proc/PID/FILE, which is in kB, converted to MB. It is 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith(field)), 0.0)
