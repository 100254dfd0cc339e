"""`python -m bench.program_times [PYTHON ...]`: measure how long pyprof's BPF program takes for a sample.

Each record from the program states how long it took. Targets are Python programs, of which registers, stack and
interpreter frames are copied. The interpreters are the given ones, or the one that runs this benchmark. Nothing else
should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from bench.targets import SOURCES

P50_US, P99_US = 6.0, 20.0
TARGETS = ("frames.py", "work.py")
BEFORE_S, LEAST = 1.5, 100


@contextmanager
def noted() -> Iterator[list[npt.NDArray[np.uint32]]]:
    """Collect, within the context, the run time of the BPF program in nanoseconds from each record that this process
    reads.
    """
    from pyprof.collectors.bpf.samples_from_ring import BpfSource

    found: list[npt.NDArray[np.uint32]] = []
    take = BpfSource.take_samples

    def noting(source: BpfSource) -> object:
        samples = take(source)
        found.append(source.records.run_ns.copy())
        return samples

    BpfSource.take_samples = noting  # type: ignore[assignment,method-assign]
    try:
        yield found
    finally:
        BpfSource.take_samples = take  # type: ignore[method-assign]


def times_us(python: str, target: str, rate_hz: float, seconds: float) -> npt.NDArray[np.float64]:
    """Record a Python program, and return the run times of the BPF program in microseconds. The first fifth is left
    out, because names of code are copied in it too.
    """
    import pyprof

    command = [python, str(SOURCES / target), f"{seconds + 10:g}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process, noted() as found:
        try:
            time.sleep(BEFORE_S)
            with pyprof.attach(process.pid, rate=rate_hz) as recording:
                time.sleep(seconds)
                recording.stop()
        finally:
            process.kill()
    ns = np.concatenate(found) if found else np.zeros(0)
    return ns[len(ns) // 5 :] / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.program_times", description=__doc__)
    parser.add_argument("-r", "--rate", type=float, default=1000.0, help="samples a second (%(default)s)")
    parser.add_argument("-d", "--seconds", type=float, default=10.0, help="of each recording (%(default)s)")
    parser.add_argument("python", nargs="*", default=[sys.executable], help="interpreters of the targets")
    arguments = parser.parse_args()
    if os.geteuid():
        sys.exit("bench.program_times needs root")
    missed = False
    for python in arguments.python:
        for target in TARGETS:
            us = times_us(python, target, arguments.rate, arguments.seconds)
            if len(us) < LEAST:
                sys.exit(f"{len(us)} samples of {target} by {python}: is BPF to be had? pyprof doctor says")
            p50, p90, p99 = np.percentile(us, [50, 90, 99])
            met = bool(p50 <= P50_US and p99 <= P99_US)
            missed |= not met
            print(
                f"{python} {target}: {len(us):,} samples, p50 {p50:.2f} us (goal {P50_US:g}), p90 {p90:.2f}, ", end=""
            )
            print(f"p99 {p99:.2f} (goal {P99_US:g}), {us.max():.1f} at most: {'met' if met else 'missed'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
