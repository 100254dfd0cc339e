"""Tests of off-CPU recordings with BPF against programs that know where and how long they waited."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import pyprof
from pyprof.collectors.bpf.wall_clock_samples import BpfWaitSamples
from pyprof.collectors.combined.source_switching_collector import CombinedCollector
from pyprof.collectors.perf.kernel_collector import KernelCollector
from pyprof.collectors.registry import open_collector
from pyprof.collectors.targets.process_selection import select_processes
from pyprof.options import CollectOptions, TargetOptions
from pyprof.problem_counters import Diagnostics
from tests.chance import poisson_bounds
from tests.interpreters.pythons import KINDS, PROGRAMS, Python
from tests.live.support.recording import running
from tests.perf.test_waits import Program, Waits, program, shares, started
from tests.support import PROGRAMS as C_PROGRAMS
from tests.support import build

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

__all__ = ["program"]

BEGUN = 0.05
"""Maximum fraction of a recording before a collector reports anything, on a busy machine."""
RATE_HZ = 99
"""The default sampling rate, by which time on a processor is sampled."""
SHORTEST_S = 1e-6
"""A duration in seconds that two switches of threads exceed."""


def ran_s(target: Program) -> dict[str, float]:
    """Return the seconds that each thread of a program had a processor so far, by the thread's name."""
    tasks = Path(f"/proc/{target.process.pid}/task").iterdir()
    read = {(task / "comm").read_text().strip(): (task / "schedstat").read_text().split()[0] for task in tasks}
    return {name: int(ns) / 1e9 for name, ns in read.items()}


def sums(waits: Waits) -> float:
    """Return the seconds of waits that have no records."""
    return sum(
        seconds
        for thread in waits.seconds.values()
        for stack, seconds in thread.items()
        if "too short or too many" in stack[-1]
    )


def slept_s(waits: Waits) -> float:
    """Return the seconds of a thread that sleeps all the time."""
    found = waits.total("endless")
    assert found == pytest.approx(waits.passed, abs=waits.passed * BEGUN)
    return found


def test_each_place_has_the_time_that_its_thread_waited_there(program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path, "naps", "reads", "ticks", "endless") as target:
        before, ran_before = target.truth(), ran_s(target)
        waits = target.record(collector="bpf")
        ran = {name: seconds - ran_before[name] for name, seconds in ran_s(target).items()}
        after = target.truth()
    passed = slept_s(waits)
    for thread in ("naps", "reads", "ticks"):  # on-CPU time is sampled, so it is not exact
        chance = (poisson_bounds(ran[thread] * RATE_HZ)[1] / RATE_HZ) - ran[thread]
        assert waits.total(thread) == pytest.approx(passed, abs=0.01 * passed + chance)
    spent = waits.of("naps", "nap_short") + waits.of("naps", "nap_long")
    true = shares(before, after, "nap_short", "nap_long")[1]
    assert waits.of("naps", "nap_long") / spent == pytest.approx(true, abs=0.05)
    assert waits.leaf("endless", "[sleeping: clock_nanosleep]") == pytest.approx(passed, rel=0.01)
    assert waits.of("reads", "wait_tick") == pytest.approx(passed, rel=0.02)
    assert sums(waits) < 0.01 * passed


def test_waits_of_microseconds_are_in_the_sums(program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path, "pings", "pongs", "endless") as target:
        before = target.truth()
        waits = target.record(collector="bpf")
        after = target.truth()
    times = after["wait_first"][1] - before["wait_first"][1]
    assert times > 5000
    passed = slept_s(waits)
    for thread in ("pings", "pongs"):
        assert waits.total(thread) == pytest.approx(passed, rel=0.06)
    assert sums(waits) > times * SHORTEST_S  # on a busy machine most time is in the few long waits
    first, second = (waits.of("pongs", place) for place in ("wait_first", "wait_second"))
    assert min(first, second) > 0


def test_time_for_a_processor_is_apart_from_time_asleep(program: Path, tmp_path: Path) -> None:
    few = min(os.sched_getaffinity(0))
    with started(program, tmp_path, "spins", "spins", "spins", "endless") as target:
        for tid in os.listdir(f"/proc/{target.process.pid}/task"):
            os.sched_setaffinity(int(tid), {few})
        waits = target.record(collector="bpf")
    assert waits.total("spins") == pytest.approx(3 * slept_s(waits), rel=0.06)
    assert waits.of("spins", "spins", "[waiting for a processor]") > 0.6 * waits.total("spins")
    assert waits.leaf("endless", "[waiting for a processor]") < 0.01 * waits.passed


@pytest.mark.parametrize("options", [(), ("--wakers",)])
def test_a_long_sleep_has_its_part_in_each_window(options: tuple[str, ...], program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path, "endless", "naps") as target:
        for seconds in (2.6, 10.6):  # a window may be late on a busy machine
            target.record("--every", "1", *options, mode="offcpu", collector="bpf", seconds=seconds)
            windows = sorted(tmp_path.glob("*.json"))
            if len(windows) >= 2:
                break
    assert len(windows) >= 2
    for path in windows:
        waits = Waits()
        waits.read(path)
        for thread in ("endless", "naps"):
            assert waits.total(thread) == pytest.approx(waits.passed, rel=0.15, abs=0.15)
        assert waits.of("endless", "nap_endless") == waits.total("endless")


PLACES = {
    "naps": ("naps", "timed"),
    "reads": ("reads", "wait_item", "get"),
    "events": ("events", "wait_event", "wait"),
    "loops": ("loops", "run", "run_forever", "select"),
    "serves": ("serves", "serve_forever", "select"),
}
"""Functions in which each thread waits."""


def has(stack: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Return True if the stack contains these functions from root to leaf.

    CPython 3.11 and later qualify the names, which are compared without the qualifier.
    """
    frames = iter([frame.rpartition(".")[2] for frame in stack])
    return all(name in frames for name in names)


def test_end_of_the_recording_ends_a_round_of_reading_sleepers(program: Path, tmp_path: Path) -> None:
    """Stop a recording before its first round. A round over all processes of a busy machine takes seconds."""
    with started(program, tmp_path, "endless", "naps") as target:
        selection = select_processes(TargetOptions(pids=(target.process.pid,)))
        collector = open_collector("bpf", selection, CollectOptions(idle=True), Diagnostics())
        assert isinstance(collector, CombinedCollector)
        assert isinstance(collector._open.main, KernelCollector)
        assert isinstance(collector._open.main.samples, BpfWaitSamples)
        outside = collector._open.main.samples.sleepers.outside
        assert outside is not None
        collector.stop()
        found = list(itertools.islice(outside.batches(), 5))
        collector.close()
    assert sum(map(len, found)) == 0


@KINDS
def test_waits_of_python_have_its_functions(python: Python, tmp_path: Path) -> None:
    with running(*python.command, "-u", str(PROGRAMS / "waits.py"), *PLACES, "ticks", stdin=subprocess.PIPE) as process:
        waits = Program(process, tmp_path).record(mode="offcpu", collector="bpf", seconds=1.0)
        assert process.stdin
        process.stdin.close()
    assert waits.passed
    for thread, names in PLACES.items():
        there = sum(seconds for stack, seconds in waits.seconds[thread].items() if has(stack, names))
        assert there > 0.8 * waits.passed, (thread, waits.seconds[thread])


@pytest.mark.parametrize("mode", ["wall", "offcpu"])
def test_each_window_has_all_sleepers_if_their_stacks_fill_many_batches(mode: str, tmp_path: Path) -> None:
    """The stacks of forty threads do not fit into four batches."""
    threads = 40
    built = build(C_PROGRAMS / "c_deep_sleepers.c", tmp_path / "deep", "-O1", "-pthread")
    with (
        running(built, str(threads)) as process,
        pyprof.attach(process.pid, mode=mode, collector="bpf", stack_size=1 << 20) as recording,
    ):
        windows = [*itertools.islice(recording.windows(0.5), 2), recording.stop()]
    for window in windows:
        asleep_ns = Counter[int]()
        for thread, length_ns in zip(window.thread.tolist(), window.values[:, -1].tolist(), strict=True):
            asleep_ns[window.threads[thread].tid] += length_ns
        assert len(asleep_ns) == threads + 1
        assert min(asleep_ns.values()) == pytest.approx(window.duration_ns, rel=0.01)
        assert max(asleep_ns.values()) <= window.duration_ns
