"""Measurement of how much longer ptrace stops a thread in order to read its Python frames.

`python -m bench.pauses RATE` measures the time of each such read in microseconds and prints the times as JSON. It runs
as a child process, because the memory of a command counts from the fork on (see unwinding.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from rich.console import Console

from bench.sessions import run_for
from bench.tables import quantile
from bench.tools import run

FRAMES, SECONDS = 30, 5.0
PROGRAM = f"""
import time
def down(left):
    return down(left - 1) if left else spin()
def spin():
    end = time.monotonic() + {SECONDS + 4}
    while time.monotonic() < end:
        sum(i * i for i in range(300))
down({FRAMES - 3})
"""


def python_pause(console: Console) -> float | None:
    """Measure how long Python frames are read within a stop. Return the 99th percentile at 100 Hz in microseconds."""
    p99 = None
    for rate in (1000, 100):
        output = run([sys.executable, "-m", "bench.pauses", str(rate)], 60).output
        took = json.loads(output) if output else []
        p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
        if p50 is not None and p99 is not None:
            console.print(
                f"reading {FRAMES} Python frames at {rate:g} Hz: p50 {p50:.0f} us, p99 {p99:.0f} us of each stop"
            )
    return p99


def _reads(rate: float) -> list[float]:
    """Return the duration in microseconds of each read of Python frames within a stop."""
    from pyprof.collectors.ptrace.stack_copy import StackCopy
    from pyprof.interpreters.cpython.process_reader import PythonProcess

    took: list[float] = []
    warming = False
    copy, warm_up = PythonProcess.copy, StackCopy.warm_up

    def timed_copy(self: Any, *arguments: Any) -> None:
        begin = time.perf_counter_ns()
        copy(self, *arguments)
        if not warming:
            took.append((time.perf_counter_ns() - begin) / 1e3)

    def marked_warm_up(self: Any, *arguments: Any) -> None:
        nonlocal warming
        warming = True
        warm_up(self, *arguments)
        warming = False

    PythonProcess.copy, StackCopy.warm_up = timed_copy, marked_warm_up  # type: ignore[method-assign, assignment]
    try:
        with subprocess.Popen([sys.executable, "-c", PROGRAM]) as target:
            time.sleep(0.5)
            _record(target.pid, rate)
            target.kill()
    finally:
        PythonProcess.copy, StackCopy.warm_up = copy, warm_up  # type: ignore[method-assign]
    return took[10:]


def _record(pid: int, rate: float) -> None:
    from pyprof.collectors.registry import open_collector
    from pyprof.collectors.targets.process_selection import select_processes
    from pyprof.options import CollectOptions, TargetOptions, UnwindOptions
    from pyprof.problem_counters import Diagnostics
    from pyprof.session.session import InputFiles, Session

    diagnostics = Diagnostics()
    files = InputFiles(UnwindOptions(), diagnostics)
    selection = select_processes(TargetOptions(pids=(pid,)))
    collector = open_collector("ptrace", selection, CollectOptions(rate), diagnostics, files.runtimes)
    run_for(Session(collector, UnwindOptions(), diagnostics, files), collector, SECONDS)


if __name__ == "__main__":
    print(json.dumps(_reads(float(sys.argv[1]))))
