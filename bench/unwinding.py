"""Measurement of unwinding alone: frames per second of one core, in the batches of a recording.

Each batch is unwound twice: the first walk meets new code, the second one does not ("warm").

`python -m bench.unwinding PID` records a process and prints the duration of its walks as JSON. It runs as a child, so
that the bench itself stays small: a command's peak memory counts from the fork on.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from bench.moments import alone
from bench.sessions import run_for
from bench.targets import Target
from bench.tools import run

if TYPE_CHECKING:
    from pyprof.model.sample_batch import SampleBatch
    from pyprof.model.unwind_result import Walk
    from pyprof.session.pipeline.batch_to_stacks import Walker

RATE, SECONDS, WARM = 2000.0, 8.0, 1
"""Sampling rate in Hz, duration in seconds, and number of batches before the measurement, because unwind tables are
read when a pc first needs them.
"""
_STACK = 1 << 16
"""Size in bytes of the copied part of each stack. With a smaller one, deep stacks would come from ptrace stops, a few
in a batch.
"""
_LEAST = 40
"""Minimum number of samples in a batch that counts in the measurement."""


def unwinding(console: Console, targets: list[Target]) -> dict[str, float]:
    """Measure the frames that pyprof unwinds per second, by the name of the target."""
    shown = Table(title=f"unwinding alone, samples of {RATE:g} Hz by perf_events, after {WARM} batches")
    for heading in ("target", "samples a batch", "frames a sample", "M frames/s", "warm", "us/sample"):
        shown.add_column(heading, justify="left" if heading == "target" else "right")
    results = {}
    for target in targets:
        with tempfile.TemporaryDirectory() as folder, alone(target.build(Path(folder))(SECONDS + 8)) as process:
            time.sleep(target.settle_s + 1)
            output = run([sys.executable, "-m", "bench.unwinding", str(process.pid)], SECONDS + 60).output
            process.kill()
        try:
            lanes, frames, batches, seconds, again = json.loads(output)
            results[target.name] = frames / seconds
            results[f"{target.name} warm"] = frames / again
        except (ValueError, ZeroDivisionError):
            shown.add_row(target.name, "failed")
            continue
        each = f"{lanes / batches:.0f}", f"{frames / lanes:.0f}", f"{frames / seconds / 1e6:.2f}"
        shown.add_row(target.name, *each, f"{frames / again / 1e6:.2f}", f"{1e6 * seconds / lanes:.1f}")
    console.print(shown)
    console.print()
    return results


class _Timed:
    """A wrapper of the recording's walker that measures the duration of its walks."""

    def __init__(self, walker: Walker) -> None:
        self._walker = walker
        self.lanes = self.frames = self.batches = self._seen = 0
        self.seconds = self.again = 0.0

    def walk(self, batch: SampleBatch) -> Walk:
        begin = time.thread_time()
        walk = self._walker.walk(batch)
        spent = time.thread_time() - begin
        if len(batch) >= _LEAST:
            self._seen += 1
            if self._seen > WARM:
                self.lanes += len(batch)
                self.frames += len(walk.pc)
                self.batches += 1
                self.seconds += spent
                begin = time.thread_time()
                self._walker.walk(batch)
                self.again += time.thread_time() - begin
        return walk


def _walk(pid: int) -> _Timed:
    from pyprof.collectors.registry import open_collector
    from pyprof.collectors.targets.process_selection import select_processes
    from pyprof.options import CollectOptions, TargetOptions, UnwindOptions
    from pyprof.problem_counters import Diagnostics
    from pyprof.session.session import Session

    diagnostics = Diagnostics()
    collector = open_collector(
        "perf", select_processes(TargetOptions(pids=(pid,))), CollectOptions(RATE, stack_size=_STACK), diagnostics
    )
    session = Session(collector, UnwindOptions(), diagnostics)
    interning = session.recorder.interning
    timed = interning.walker = _Timed(interning.walker)
    run_for(session, collector, SECONDS)
    return timed


if __name__ == "__main__":
    found = _walk(int(sys.argv[1]))
    print(json.dumps([found.lanes, found.frames, found.batches, found.seconds, found.again]))
