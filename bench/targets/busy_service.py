"""`python3 busy_service.py FILE SHARE`: run three functions in turn, until the process is killed.

The program appends records of five 64-bit numbers to FILE: the monotonic clock, the process's own processor time, and
the time in each of the functions, all in nanoseconds. SHARE is the share of one processor that it uses.
"""

import os
import random
import struct
import sys
import time

PARTS = (0.5, 0.35, 0.15)
RECORD_NS = 2_000_000
"""Processor time of the process in nanoseconds between two records."""


class Clocks:
    """The processor time spent in each function so far, and the file to which it is written."""

    def __init__(self, file):
        self._file, self._had, self._last = file, [0, 0, 0], time.process_time_ns()

    def record(self, at):
        now = time.process_time_ns()
        self._had[at] += now - self._last
        self._last = now
        self._file.write(struct.pack("<5q", time.monotonic_ns(), now, *self._had))

    def spin(self, at, ns):
        """Use the processor for a number of nanoseconds, measured by the process's CPU clock."""
        begun = time.process_time_ns()
        due = begun + RECORD_NS
        while (now := time.process_time_ns()) < begun + ns:
            sum(range(300))
            if now >= due:
                self.record(at)
                due = now + RECORD_NS
        self.record(at)


def alpha(clocks, ns):
    clocks.spin(0, ns)


def beta(clocks, ns):
    clocks.spin(1, ns)


def gamma(clocks, ns):
    clocks.spin(2, ns)


def main(path, share):
    chance = random.Random(os.getpid())
    with open(path, "ab", buffering=0) as file:
        clocks = Clocks(file)
        while True:
            for part, function in zip(PARTS, (alpha, beta, gamma), strict=True):
                function(clocks, round(chance.expovariate(1 / (part * 30e6))))
            time.sleep(0.03 * (1 - share) / share)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
