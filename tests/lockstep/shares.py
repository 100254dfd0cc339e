"""Recordings of a program whose threads run in step with the samples, and the number of samples by function."""

from __future__ import annotations

import math
import mmap
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyprof.collectors.base import Collector
from pyprof.collectors.bpf.kernel_program import BpfSampler, KernelTargets, choose_ring_size
from pyprof.collectors.bpf.on_cpu_samples import BpfSamples
from pyprof.collectors.bpf.samples_from_ring import BpfSource
from pyprof.collectors.perf.cpu_wide_events import Scope, choose_record_scope, choose_scope
from pyprof.collectors.perf.kernel_collector import KernelCollector, KernelRecords
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.targets.process_selection import Selection
from pyprof.collectors.thread_start_times import Identities
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.live.support.recording import running
from tests.perf.opening import open_perf
from tests.support import PROGRAMS, build

GOLDEN = (1 + math.sqrt(5)) / 2
PERIODS = {"1/2": 0.5, "1": 1.0, "2": 2.0, "3": 3.0, "99/100": 0.99, "100/99": 100 / 99, "golden ratio": GOLDEN}
"""Periods of the programs as multiples of the sampling period."""
_TRUTH = struct.Struct("=7Q")
Truth = tuple[int, ...]
"""Fields of a struct truth of c_lockstep.c."""


@dataclass(frozen=True)
class Share:
    """The processor time and the samples of one thread.

    Attributes:
        spent_ns: Processor time of each function in nanoseconds, shape (2,).
        samples: Number of samples of each function, shape (2,).
    """

    period: str
    spent_ns: tuple[int, int]
    samples: tuple[int, int]

    @property
    def truth(self) -> float:
        """Share of the first function in the thread's own measurement."""
        return self.spent_ns[0] / max(sum(self.spent_ns), 1)

    @property
    def sampled(self) -> float:
        return self.samples[0] / max(sum(self.samples), 1)

    @property
    def z(self) -> float:
        """Difference between the sampled share and the truth in standard deviations of the binomial distribution."""
        n, p = sum(self.samples), self.truth
        return (self.samples[0] - n * p) / math.sqrt(n * p * (1 - p)) if n and 0 < p < 1 else 0.0


def _open_bpf(pid: int, options: CollectOptions) -> Collector:
    cpus, diagnostics, ids = list_online_cpus(), Diagnostics(), Identities()
    watched = KernelTargets(options.rate_hz)
    source = BpfSource(BpfSampler(watched, choose_ring_size(watched, len(cpus)), cpus), diagnostics, ids.next_id, None)
    records = KernelRecords(pid, options, diagnostics, choose_record_scope, ids, _selection(pid), wakes=True)
    return KernelCollector(records, BpfSamples(records, source, options, before_exec=False), options)


def _selection(pid: int) -> Selection:
    return Selection((pid,), (), lasting=False, everything=False, _fits=lambda pid: False)


def _choose_threads(pid: int, cpu: int, options: CollectOptions, everything: bool) -> Scope:
    """Choose events on threads, as they are used if events on processors are not allowed."""
    return choose_scope(pid, cpu, options, everything).narrow_to_threads()


COLLECTORS: dict[str, tuple[str, Callable[[int, CollectOptions], Collector]]] = {
    "bpf": ("wall", _open_bpf),
    "perf": ("wall", lambda pid, options: open_perf(pid, options, Diagnostics())),
    "perf on threads": (
        "cpu",
        lambda pid, options: open_perf(pid, options, Diagnostics(), choose_scope=_choose_threads),
    ),
    "ptrace": ("cpu", lambda pid, options: PtraceCollector(pid, options, Diagnostics())),
}
"""The clock by which the programs alternate, and the function that opens the collector, by name.

The clock is that of the sampling times, except for ptrace: on a busy machine the profiler and the programs get their
processors at the kernel's ticks, which are in step with programs that alternate at 1,000 Hz of wall time.
"""


@contextmanager
def lockstep_program(clock: str, periods_ns: list[int]) -> Iterator[tuple[int, Callable[[], list[Truth]]]]:
    """Run the program, and yield its pid and a function that reads the results of its threads (struct truth of
    c_lockstep.c).
    """
    with tempfile.TemporaryDirectory() as folder:
        program = build(PROGRAMS / "c_lockstep.c", Path(folder) / "lockstep", "-O1", "-no-pie", "-pthread")
        file = Path(folder) / "truth"
        file.write_bytes(bytes(_TRUTH.size * len(periods_ns)))
        with (
            file.open("r+b") as opened,
            mmap.mmap(opened.fileno(), 0) as memory,
            running(program, clock, file, *map(str, periods_ns)) as process,
        ):
            yield process.pid, lambda: list(_TRUTH.iter_unpack(memory[:]))


def record_shares(
    collector: str,
    rate_hz: float,
    periods: dict[str, float],
    until: Callable[[int, float], bool],
    clock: str = "",
) -> list[Share]:
    """Record one thread of each period at the same time.

    Args:
        collector: Name of the collector.
        rate_hz: Sampling rate in Hz.
        periods: Period of each thread as a multiple of the sampling period.
        until: A function of (number of samples of the thread with the fewest, seconds since the start) that returns
            True
            at the end.
        clock: Clock by which the program alternates: "wall", "cpu", or "" for that in COLLECTORS.
    """
    usual, opened = COLLECTORS[collector]
    with lockstep_program(clock or usual, [round(1e9 / rate_hz * period) for period in periods.values()]) as (
        pid,
        read,
    ):
        source = opened(pid, CollectOptions(rate_hz=rate_hz, flush_s=0.2))
        before = after = read()
        counts = {truth[0]: np.zeros(2, np.int64) for truth in before}
        began = time.monotonic()
        try:
            for batch in source.batches():
                pcs = batch.regs[:, batch.arch.pc] if len(batch) else np.zeros(0, np.uint64)
                for tid, *places, _, _ in before:
                    mine = pcs[batch.tid == tid]
                    for half, (low, high) in enumerate((places[:2], places[2:])):
                        counts[tid][half] += np.count_nonzero((mine >= low) & (mine < high))
                if until(min(int(each.sum()) for each in counts.values()), time.monotonic() - began):
                    source.stop()
                    after = read()
        finally:
            source.close()
    return [
        Share(
            name,
            (end[5] - start[5], end[6] - start[6]),
            (int(counts[start[0]][0]), int(counts[start[0]][1])),
        )
        for name, start, end in zip(periods, before, after, strict=True)
    ]
