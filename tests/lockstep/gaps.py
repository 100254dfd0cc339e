"""Times between samples, compared with the designed distribution in a two-sample Kolmogorov-Smirnov test."""

from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import numpy.typing as npt

from pyprof.collectors.bpf.kernel_program import BpfSampler, KernelTargets
from pyprof.collectors.bpf.samples_from_ring import BpfSource
from pyprof.collectors.perf.cpu_wide_events import choose_scope
from pyprof.collectors.perf.event_manager import EventManager
from pyprof.collectors.perf.per_thread_events import FOREVER_NS, RingReader
from pyprof.collectors.perf.random_sampling import LIFE_PERIODS, RandomRates
from pyprof.collectors.perf.ring_buffer_records import CPU, MIN_RING, TIME, Scan, list_online_cpus, open_rings
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics

F64 = npt.NDArray[np.float64]
_REFERENCE = 20_000


def ks_probability(found: F64, designed: F64) -> float:
    """Return the probability of at least the distance between these samples if their distributions are equal."""
    both = np.sort(np.concatenate([found, designed]))
    parts = [np.searchsorted(np.sort(part), both, side="right") / len(part) for part in (found, designed)]
    distance = float(np.abs(parts[0] - parts[1]).max())
    size = math.sqrt(len(found) * len(designed) / (len(found) + len(designed)))
    scaled = (size + 0.12 + 0.11 / size) * distance
    if scaled < 0.2:
        return 1.0
    return float(min(2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101)), 1.0))


@contextmanager
def _no_idle_processor() -> Iterator[int]:
    """Keep each processor busy, and yield the pid of one of the busy programs."""
    programs = []
    try:
        for cpu in list_online_cpus():
            program = subprocess.Popen(["sh", "-c", "while :; do :; done"])
            programs.append(program)
            os.sched_setaffinity(program.pid, {cpu})
        yield programs[0].pid
    finally:
        for program in programs:
            program.kill()
            program.wait()


def bpf_gaps(rate_hz: float, seconds: float) -> tuple[F64, F64]:
    """Return the gaps between samples of a processor in overflows of its event: measured ones and designed ones."""
    with _no_idle_processor():
        sampler = BpfSampler(KernelTargets(rate_hz, everything=True), 64 << 20, list_online_cpus())
        source = BpfSource(sampler, Diagnostics(), itertools.count(1).__next__, None)
        times: dict[int, list[int]] = defaultdict(list)
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(min(0.5, seconds))
                samples = source.take_samples()
                for cpu, at in zip(samples.cpu.tolist(), samples.time_ns.tolist(), strict=True):
                    times[cpu].append(at)
                source.release_samples()
        finally:
            source.close()
    period_ns = 1e9 / sampler.overflow_hz
    found = np.concatenate([np.rint(np.diff(each) / period_ns) for each in times.values()])
    return found, _designed_overflows(sampler.overflow_hz / rate_hz)


def _designed_overflows(slot: float) -> F64:
    """Return gaps of a design in which each slot of overflows has one sample, at the first overflow after a random
    time.
    """
    taken, last = [], 0
    for number in range(_REFERENCE):
        last = max(math.ceil((number + random.random()) * slot), last + 1)
        taken.append(last)
    return np.diff(taken).astype(np.float64)


def perf_gaps(rate_hz: float, seconds: float) -> tuple[F64, F64]:
    """Return the gaps between samples of a processor in sampling periods: measured ones and designed ones.

    While an event keeps its rate, its gaps are equal, and the next rate mirrors the last one. So one gap of some lives
    counts, for the gaps to be independent.
    """
    options, cpus = CollectOptions(rate_hz=rate_hz, stack_size=64), list_online_cpus()
    times: dict[int, list[int]] = defaultdict(list)
    with _no_idle_processor() as pid, closing(open_rings(cpus, MIN_RING, False, False)) as rings:
        scope = choose_scope(pid, cpus[0], options, everything=True)
        with closing(EventManager(scope, options, RingReader(rings, Diagnostics()))) as manager:
            manager.begin((), list)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(min(manager.change_rates() / 1e9, 0.1))
                found = manager.scan(FOREVER_NS)
                for first in np.concatenate(found.samples) if found.samples else ():
                    times[int(rings.words[first + CPU]) & 0xFFFF_FFFF].append(int(rings.words[first + TIME]))
                found.release_records()
    gaps = np.concatenate([np.diff(each)[:: 4 * LIFE_PERIODS] for each in times.values()])
    return gaps * rate_hz / 1e9, np.diff(event_times(_REFERENCE, random.Random()))


@dataclass(frozen=True, slots=True)
class _CountingReader(RingReader):
    """A reader that keeps the times of all records, also of those that are not chosen as samples."""

    times: list[int] = field(default_factory=list)

    def scan_rings(self, until_ns: int) -> Scan:
        found = RingReader.scan_rings(self, until_ns)
        self.times.extend(int(self.rings.words[first + TIME]) for part in found.samples for first in part)
        return found


def thread_gaps(rate_hz: float, seconds: float) -> tuple[F64, F64]:
    """Return the gaps between samples of a thread in records of its event: measured ones and designed ones."""
    options, cpus = CollectOptions(rate_hz=rate_hz, stack_size=64), list_online_cpus()
    times: list[int] = []
    with _no_idle_processor() as pid, closing(open_rings(cpus, MIN_RING, False, False)) as rings:
        reader = _CountingReader(rings, Diagnostics())
        scope = choose_scope(pid, cpus[0], options, everything=False).narrow_to_threads()
        with closing(EventManager(scope, options, reader)) as manager:
            manager.begin((pid,), list)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(0.1)
                found = manager.scan(FOREVER_NS)
                times += [int(rings.words[first + TIME]) for part in found.samples for first in part]
                found.release_records()
            factor = manager._thinning.factor
    chosen = np.searchsorted(np.sort(reader.times), np.sort(times))
    return np.diff(chosen).astype(np.float64), _designed_selection(factor)


def _designed_selection(mean: float) -> F64:
    """Return gaps of a design in which each group of records has one sample. Group sizes are whole, by chance."""
    taken, start = [], 0
    for _ in range(_REFERENCE):
        size = int(mean) + (random.random() < mean % 1)
        taken.append(start + random.randrange(size))
        start += size
    return np.diff(taken).astype(np.float64)


def event_times(count: int, chance: random.Random) -> F64:
    """Return the times of the samples of an event whose rate changes, in sampling periods."""
    rates = RandomRates(1.0, chance.uniform)
    rate = rates.draw()
    rates.begin(0, rate)
    times: list[float] = []
    due, look, samples = 1 / rate, 0.0, 0
    while len(times) < count:
        if due <= look:
            times.append(due)
            due, samples = due + 1 / rate, samples + 1
            continue
        if rates.is_over(0, samples):
            rate = rates.change(0)
            due = look + 1 / rate  # the kernel starts a new period
        look, samples = look + LIFE_PERIODS * chance.uniform(0.5, 1), 0
    return np.array(times)


def ptrace_phases(rate_hz: float, seconds: float) -> tuple[F64, F64]:
    """Return the phases of a program with the sampling period at which a thread was sampled: measured and designed
    ones.

    Gaps between samples cannot be compared because there is no sample while the thread waits for a processor.
    """
    with _no_idle_processor() as pid:
        collector = PtraceCollector(pid, CollectOptions(rate_hz=rate_hz, flush_s=0.2), Diagnostics())
        found: list[float] = []
        end = time.monotonic() + seconds
        try:
            for batch in collector.batches():
                found += (batch.time_ns * rate_hz / 1e9 % 1).tolist()
                if time.monotonic() > end:
                    collector.stop()
        finally:
            collector.close()
    return np.array(found), np.linspace(0, 1, _REFERENCE)


GAPS = {"bpf": bpf_gaps, "perf": perf_gaps, "perf on threads": thread_gaps, "ptrace": ptrace_phases}
