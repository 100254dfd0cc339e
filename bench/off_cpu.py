"""Check the totals of off-CPU time: `python -m bench.off_cpu [SECONDS]`.

Threads nap and wait for each other, for 0.05 to 30 ms each time, and write down the times by their own clock. These are
compared with a recording of the same time, thread by thread. A thread's own clock includes what it runs around its
wait, some microseconds. Threads with waits shorter than a millisecond are shown, but not judged. Nothing else should
run on the machine.
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

GOAL, MIN_NS = 0.01, 1_000_000
BEFORE_S, AFTER_S = 0.5, 1.0
COLLECTORS = ("bpf", "perf")


def compare(folder: Path, collector: str, seconds: float) -> bool:
    """Compare a recording with the threads' own times, and print a line for each thread. Return True if the goal was
    met.
    """
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
    waits = waits[waits[:, 2] > waits[:, 1]]
    met = True
    for number, thread in enumerate(profile.threads):
        mine = waits[waits[:, 0] == thread.tid]
        own = int((mine[:, 2] - mine[:, 1]).sum())
        found = int(profile.values[profile.thread == number, -1].sum())
        if own:
            each_ns = own / len(mine)
            met &= abs(found - own) <= GOAL * own or each_ns < MIN_NS
            print(
                f"{collector:4} {len(mine):7,} waits of {each_ns / 1e6:6.3f} ms, recorded "
                f"{100 * (found / own - 1):+.2f} %: {(found - own) / len(mine) / 1e3:+.1f} us each"
            )
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
