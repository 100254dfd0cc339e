"""`python -m bench.waits [SECONDS]`: measure what recording waits costs threads that wait often.

Two threads pass a byte back and forth. Their round trips per second, without a profiler and under each one, are
measured in turn, so that a machine that becomes busier affects all alike. Nothing else should run on the machine.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.targets import SOURCES

ROUNDS = 4
PYPROF = (sys.executable, "-m", "pyprof", "record", "-q", "--mode", "offcpu")


def recorders(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the commands of the profilers by name. The pid of the target must be appended to a command."""
    out = ("-o", str(folder / "out.collapsed"))
    found = {
        "alone": (),
        "pyprof --collector bpf": (*PYPROF, "--collector", "bpf", *out, "-p"),
        "pyprof --collector perf": (*PYPROF, "--collector", "perf", *out, "-p"),
    }
    if shutil.which("perf"):
        record = ("perf", "record", "-q", "-e", "context-switches", "-c", "1", "--call-graph", "dwarf")
        found["perf record, each switch"] = (*record, "-o", str(folder / "perf.data"), "-p")
    return found


def speed(program: Path, command: tuple[str, ...], seconds: float) -> float:
    """Run the two threads under a profiler, and return their round trips per second. The first second is left out."""
    target = subprocess.Popen([program, str(seconds + 1.5)], stdout=subprocess.PIPE, text=True)
    with target:
        tool = subprocess.Popen([*command, str(target.pid)], stdout=subprocess.DEVNULL) if command else None
        assert target.stdout
        found = [float(line) for line in target.stdout]
        if tool is not None:
            tool.wait(60)
    return statistics.median(found[5:])


def main(seconds: float) -> None:
    if os.geteuid():
        sys.exit("bench.waits needs root")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "pingpong"
        subprocess.run(["gcc", "-O2", "-pthread", SOURCES / "pingpong.c", "-o", program], check=True)
        found: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for recorder, command in recorders(folder).items():
                found.setdefault(recorder, []).append(speed(program, command, seconds))
        alone = statistics.median(found["alone"])
        for recorder, rates in found.items():
            rate = statistics.median(rates)
            print(f"{recorder:28} {rate:9,.0f} round trips/s   {100 * (1 - rate / alone):5.1f} % slower")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
