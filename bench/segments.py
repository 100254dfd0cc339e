"""`python -m bench.segments`: measure the time and memory that `pyprof query` needs to read a spool.

The segments are like those that an agent makes of one service: a minute of 19 Hz, ten threads, stacks of 25 functions
that partly recur from minute to minute. 50 windows differ. Each run is a separate process. For comparison, another
program merges the same files.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyprof.exporters import pprof
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.agent.spool import Caps, Spool, SpoolSegment
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.importers.profile_builder import About, Builder
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.unwind_result import Trust
from pyprof.problem_counters import Diagnostics

STACKS, DEPTH, FUNCTIONS, THREADS = 400, 25, 997, 10
DIFFERENT = 50
GO = "/usr/lib/go-1.19/pkg/tool/linux_amd64/pprof"


def window(rng: random.Random, end_ns: int, length_ns: int = 60 * 10**9, new: int = 0) -> Profile:
    """Return a synthetic window of a service. Of a hundred stacks, `new` are in no other window."""
    builder = Builder()
    module = builder.add_module(ModuleInfo("/opt/shop/checkout", "ab" * 20, 0x400000, 0x900000, 0, True, True))

    def frame(number: int) -> int:
        line = Line(f"shop::module_{number % 40}::function_{number}", f"_Z{number}", 4, f"src/{number % 40}.cc", number)
        pc = 0x400000 + 64 * number
        return builder.add_frame(
            Frame(FrameKind.NATIVE, pc, pc, 64 * number, module, (line,), Trust.EH_FRAME, line.function)
        )

    for _ in range(STACKS):
        seen = not new or rng.randrange(100) >= new
        kind, path, at = random.Random(rng.randrange(2 * STACKS) if seen else rng.random()), [], 0
        for _ in range(DEPTH):  # each function calls three others
            at = (3 * at + kind.randrange(3) + 1) % FUNCTIONS
            path.append(frame(at))
        tid = 100 + rng.randrange(THREADS)
        thread = ThreadInfo(100, tid, f"worker-{tid}", "checkout", labels=(("env", "staging"), ("service", "checkout")))
        builder.add_sample(builder.add_stack(path), (rng.randrange(1, 9), 52_631_579), thread)
    kinds = (ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))
    return builder.build(About("checkout", kinds, (), end_ns - length_ns, length_ns, 52_631_579))


def fill(folder: str, count: int) -> int:
    """Fill a spool with segments, and return its size in bytes."""
    spool, rng = Spool(folder, Caps(), Diagnostics()), random.Random(19)
    now = time.time_ns()
    made = []
    for number in range(min(count, DIFFERENT)):
        out = io.BytesIO()
        pprof.write(window(rng, now - number * 60 * 10**9), out, ExportOptions(evidence=True))
        made.append(out.getvalue())
    for number in range(count):
        name = SegmentName.new("checkout", now - number * 60 * 10**9)
        spool.store_window([SpoolSegment(name, made[number % len(made)])])
    return spool.inventory.bytes


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command, and return its (processor seconds, maximum resident MB)."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, said.decode()
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.segments", description=__doc__)
    parser.add_argument("--segments", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pyprof-bench-") as folder:
        size = fill(folder, arguments.segments)
        print(f"{arguments.segments} segments, {size / 1e6:.1f} MB, {STACKS} stacks of {DEPTH} functions each")
        files = sorted(map(str, Path(folder).glob("*/*/*")))
        query = [sys.executable, "-m", "pyprof", "query", "--spool", folder, "--since", "52w"]
        commands = {"pyprof query": query, "a tenth of it": [*query[:-1], f"{6 * arguments.segments}s"]}
        if shutil.which(GO):
            commands["go tool pprof"] = [GO, "-top", *files]
        for name, command in commands.items():
            runs = [measured(command) for _ in range(arguments.rounds)]
            seconds, memory = (sorted(column) for column in zip(*runs, strict=True))
            middle = statistics.median(seconds)
            print(f"{name:14} {middle:6.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f}), {memory[-1]:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
