"""Are totals of time off the processor right? `python -m bench.off_cpu [SECONDS]`.

Threads nap and wait for each other, for 0.2 to 30 ms each time, and write down when by their own clock. What a
recording says of the same time is compared, thread by thread. A thread's own clock also holds what it runs around its
wait, some microseconds. Nothing else should run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.targets import SOURCES

GOAL = 0.01
BEFORE_S, AFTER_S = 0.5, 1.0
COLLECTORS = ("bpf", "perf")


def compare(folder: Path, collector: str, seconds: float) -> bool:
    """Prints a line for each thread. Was the goal met?"""
    import pyprof

    recording = folder / f"{collector}.pyprof"
    target = subprocess.Popen(
        [folder / "naps", f"{seconds + BEFORE_S + AFTER_S + 5:g}"], stdout=subprocess.PIPE, text=True
    )
    time.sleep(BEFORE_S)
    epoch_ns = time.time_ns() - time.monotonic_ns()
    command = [sys.executable, "-m", "pyprof", "record", "-q", "--mode", "offcpu", "--collector", collector]
    subprocess.run([*command, "-d", f"{seconds:g}", "-o", recording, "-p", str(target.pid)], check=True)
    text, _ = target.communicate(timeout=60)
    profile = pyprof.load(recording)
    begin = profile.start_ns - epoch_ns
    waits = np.array([line.split() for line in text.splitlines()], np.int64)
    waits[:, 1:] = np.clip(waits[:, 1:], begin, begin + profile.duration_ns)
    met = True
    for number, thread in enumerate(profile.threads):
        mine = waits[waits[:, 0] == thread.tid]
        own = int((mine[:, 2] - mine[:, 1]).sum())
        found = int(profile.values[profile.thread == number, -1].sum())
        if own:
            met &= abs(found - own) <= GOAL * own
            print(f"{collector:4} {len(mine):7,} waits {own / 1e9:8.3f} s, recorded {100 * (found / own - 1):+.2f} %")
    return met


def main(seconds: float) -> None:
    if os.geteuid():
        sys.exit("bench.off_cpu needs root")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["gcc", "-O2", "-Wall", "-pthread", SOURCES / "naps.c", "-o", folder / "naps"], check=True)
        for collector in COLLECTORS:
            met = compare(folder, collector, seconds)
            print(f"{collector}: the goal of {100 * GOAL:g} % is {'met' if met else 'missed'}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
