"""Tests that the agent's windows contain exact processor time from the kernel's clocks, independent of the samples."""

from __future__ import annotations

import select
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.child_processes import find_descendants
from pyprof.collectors.linux.process_cpu_times import TICK_NS, read_process_ns
from pyprof.fleet.agent.process_rules import NOT_RECORDED, RuleVerdict
from pyprof.fleet.agent.process_table import ObservedProcess
from pyprof.fleet.agent.scale_to_cpu_time import ProcessClocks, ProcessTime, with_exact_sums
from pyprof.fleet.agent.windows import excess_seconds, find_unattributed, labelled
from pyprof.lazy_dataclasses import replace
from pyprof.model.marker_frames import LATE, NO_SAMPLE
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo, ValueType
from pyprof.model.summary import NOT_SAMPLED_LABEL
from pyprof.model.unwind_result import Trust
from tests.exporters.profiles import PERIOD_NS, Builder, code

SPIN_NS = 50_000_000
WORKER = """
import sys, time
for line in sys.stdin:
    until = time.process_time_ns() + int(line)
    while time.process_time_ns() < until: pass
    print(time.process_time_ns(), flush=True)
"""


FORKS = """
import os, resource, sys, time
for line in sys.stdin:
    for _ in range(int(line)):
        if (child := os.fork()) == 0:
            while time.process_time_ns() < 20_000_000: pass
            if _ % 3 == 0:
                if os.fork() == 0:
                    while time.process_time_ns() < 20_000_000: pass
                    os._exit(0)
                os.wait()
            os._exit(0)
        os.waitpid(child, 0)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(round(1e9 * (spent.ru_utime + spent.ru_stime)), flush=True)
"""


def sums(profile: Profile) -> dict[int, int]:
    """Return the primary value of each process."""
    found: dict[int, int] = {}
    for thread, values in zip(profile.thread.tolist(), profile.values.tolist(), strict=True):
        pid = profile.threads[thread].pid
        found[pid] = found.get(pid, 0) + values[-1]
    return found


def window(samples: list[int]) -> Profile:
    """Return a profile with this many samples of processes 100, 101, ... Each process has two threads and two
    functions.
    """
    threads = [
        ThreadInfo(pid, pid + 1000 * nth, "t", "p", 5, 5) for pid in range(100, 100 + len(samples)) for nth in (0, 1)
    ]
    builder = Builder(threads=threads)
    for at, count in enumerate(samples):
        for nth in range(count):
            builder.sample(builder.node([code("main"), code("f" if nth % 3 else "g")]), 2 * at + nth % 2)
    return builder.build()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10**12)), min_size=1, max_size=6))
def test_each_process_has_its_own_time_with_any_number_of_samples(processes: list[tuple[int, int]]) -> None:
    before = window([samples for samples, _ in processes])
    times = [ProcessTime(100 + at, 5, "p", ns) for at, (_, ns) in enumerate(processes)]
    after = with_exact_sums(before, times)
    assert {pid: ns for pid, ns in sums(after).items() if ns} == {each.pid: each.ns for each in times if each.ns}
    assert after.summary.shown.total == sum(each.ns for each in times)
    assert int(after.values[:, 0].sum()) == len(before.stack)


def test_functions_keep_their_shares_of_the_process() -> None:
    before = window([9])
    after = with_exact_sums(before, [ProcessTime(100, 5, "p", 9_000_000_007)])
    shares = [{cost.name: cost.own / profile.total for cost in profile.top(9)} for profile in (before, after)]
    assert shares[1].keys() == shares[0].keys() == {"f", "g"}
    assert all(abs(shares[1][name] - shares[0][name]) < 1e-8 for name in shares[0])


def test_process_without_samples_has_a_row_that_says_so() -> None:
    before = window([3])
    before = replace(before, summary=replace(before.summary, ends={"root": 3}))
    after = with_exact_sums(before, [ProcessTime(100, 5, "p", 1), ProcessTime(7, 9, "idle", 2_500_000_000)])
    rows = [row for row in range(len(after.stack)) if after.threads[after.thread[row]].pid == 7]
    assert {after.path(int(after.stack[row]))[0].title for row in rows} == {"[not sampled]"}
    assert not after.values[rows, 0].any()
    assert after.time_ns[rows].max() <= after.start_ns + after.duration_ns
    assert after.summary.shown.ends[NOT_SAMPLED_LABEL] == 2_500_000_000
    assert after.threads[after.thread[rows[0]]] == ThreadInfo(7, 7, "idle", "idle", 9, 9)


def test_time_that_the_recording_itself_calls_unsampled_counts_no_samples() -> None:
    builder = Builder()
    builder.sample(builder.node([code("main")]))
    late = Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, LATE.title, LATE)
    builder.sample(builder.node([late]), count=50, cpu_ns=PERIOD_NS)
    after = with_exact_sums(builder.build(), [ProcessTime(100, 0, "server", 4 * PERIOD_NS)])
    assert after.values.tolist() == [[1, 2 * PERIOD_NS], [0, 2 * PERIOD_NS]]


def test_time_after_the_last_reading_of_an_ended_process_comes_from_its_samples() -> None:
    before = window([10])  # one sample each 10 ms from the start of the window
    unread_ns = before.duration_ns - round(6.5 * PERIOD_NS)
    after = with_exact_sums(before, [ProcessTime(100, 5, "p", 1_000, unread_ns)])
    assert sums(after) == {100: 1_000 + 3 * PERIOD_NS}


def test_two_processes_that_had_one_number_have_each_its_own_time() -> None:
    builder = Builder(threads=[ThreadInfo(9, 9, "a", "a", 1_000, 1_000), ThreadInfo(9, 9, "b", "b", 5_000, 5_000)])
    for thread in (0, 1, 1):
        builder.sample(builder.node([code("main")]), thread)
    after = with_exact_sums(builder.build(), [ProcessTime(9, 5_010, "b", 70), ProcessTime(9, 990, "a", 30)])
    assert after.values[:, 1].tolist() == [30, 35, 35]


def seen(pid: int) -> dict[int, ObservedProcess]:
    start = procfs.read_start_ticks(pid)
    assert start is not None
    return {pid: process(start)}


def process(start: int) -> ObservedProcess:
    return ObservedProcess(0, start, "python3", 0.0, False, NOT_RECORDED)


def worker() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def spun(child: subprocess.Popen[str]) -> int:
    """Let the process run for SPIN_NS and return its CPU clock in nanoseconds."""
    assert child.stdin is not None
    assert child.stdout is not None
    print(SPIN_NS, file=child.stdin, flush=True)
    return int(child.stdout.readline())


class Simulation:
    """A process whose CPU clock is piecewise linear over monotonic time, in steps of STEP_NS. Reading it takes no
    time.
    """

    STEP_NS = 1_000_000_000

    def __init__(self, spent_ns: list[int]) -> None:
        self.now_ns = 0
        self._values = np.concatenate([[0], np.cumsum(spent_ns)])
        self.clocks = ProcessClocks(lambda _: 1 + self.at(self.now_ns), lambda: 1 + self.now_ns)
        self.processes = {7: ObservedProcess(0, 0, "worker", 0.0, False, NOT_RECORDED)}

    def at(self, at_ns: int) -> int:
        step, into_ns = divmod(at_ns, self.STEP_NS)
        low, high = self._values[step : step + 2].tolist()
        return int(low + (high - low) * into_ns // self.STEP_NS)

    def end_window(self, start_ns: int, end_ns: int) -> int:
        return sum(each.ns for each in self.clocks.end_window(self.processes, start_ns + 1, end_ns + 1))


@given(
    st.lists(st.integers(0, 2 * Simulation.STEP_NS), min_size=60, max_size=60),
    st.lists(st.tuples(st.integers(0, 900_000_000), st.integers(0, 5)), min_size=1, max_size=5),
)
def test_time_in_a_window_is_exact_however_late_its_end_is_acknowledged(
    spent_ns: list[int], windows: list[tuple[int, int]]
) -> None:
    """End each window within a second of steady load, and acknowledge the flush up to five seconds later."""
    host = Simulation(spent_ns)
    host.clocks.begin(host.processes)
    start_ns = sums_ns = 0
    for into_ns, late in windows:
        host.now_ns = max((start_ns // host.STEP_NS + 1) * host.STEP_NS, host.now_ns)
        for _ in range(2):
            host.clocks.poll(host.processes)
            host.now_ns += host.STEP_NS
        end_ns = host.now_ns + into_ns
        host.clocks.read_near_end(host.processes)
        for _ in range(late):
            host.now_ns += host.STEP_NS
            host.clocks.poll(host.processes)
        host.now_ns = max(host.now_ns, end_ns)
        found_ns = host.end_window(start_ns, end_ns)
        assert abs(found_ns - (host.at(end_ns) - host.at(start_ns))) <= 2
        sums_ns, start_ns = sums_ns + found_ns, end_ns
    assert abs(sums_ns - host.at(start_ns)) <= 1, "no time is lost or counted twice between windows"


@given(
    st.lists(st.integers(0, 2 * Simulation.STEP_NS), min_size=60, max_size=60),
    st.lists(st.lists(st.integers(0, 900_000_000), max_size=4), min_size=1, max_size=3),
)
def test_parts_of_a_window_have_the_time_of_the_window_until_then(
    spent_ns: list[int], windows: list[list[int]]
) -> None:
    """A part ends within a second of steady use, as a window does, and the window's own time stays exact."""
    host = Simulation(spent_ns)
    host.clocks.begin(host.processes)
    start_ns = 0
    for parts in windows:
        of_parts_ns = 0
        for into_ns in parts:
            for _ in range(2):
                host.now_ns = (host.now_ns // host.STEP_NS + 1) * host.STEP_NS
                host.clocks.poll(host.processes)
            host.clocks.read_near_end(host.processes)
            end_ns = host.now_ns + into_ns
            host.now_ns += host.STEP_NS
            times = host.clocks.end_part(host.processes, start_ns + 1, end_ns + 1)
            of_parts_ns += sum(each.ns for each in times)
            assert abs(of_parts_ns - (host.at(end_ns) - host.at(start_ns))) <= 2
        host.now_ns = end_ns = (host.now_ns // host.STEP_NS + 1) * host.STEP_NS
        found_ns = host.end_window(start_ns, end_ns)
        assert abs(found_ns - (host.at(end_ns) - host.at(start_ns))) <= 2
        start_ns = end_ns


@given(
    st.lists(st.integers(0, 2 * Simulation.STEP_NS), min_size=60, max_size=60),
    st.integers(0, 4),
    st.integers(1, 20),
    st.integers(0, 900_000_000),
)
def test_recording_that_is_resumed_has_all_time_since_the_last_part(
    spent_ns: list[int], parts: int, gap: int, into_ns: int
) -> None:
    """Read the clock once a step. The recording ends after some parts, and the next one begins later."""
    host = Simulation(spent_ns)
    host.clocks.begin(host.processes)
    counted_ns = sums_ns = 0

    def pass_steps(count: int) -> None:
        for _ in range(count):
            host.now_ns = (host.now_ns // host.STEP_NS + 1) * host.STEP_NS
            host.clocks.poll(host.processes)

    for _ in range(parts):
        pass_steps(2)
        host.clocks.read_near_end(host.processes)
        counted_ns, host.now_ns = host.now_ns + into_ns, host.now_ns + host.STEP_NS
        sums_ns += sum(each.ns for each in host.clocks.end_part(host.processes, 1, counted_ns + 1))
    pass_steps(gap)
    host.clocks.resume(host.processes)
    pass_steps(3)
    sums_ns += host.end_window(counted_ns, host.now_ns)
    assert abs(sums_ns - host.at(host.now_ns)) <= 2


def begin_window_now(clocks: ProcessClocks, processes: dict[int, ObservedProcess]) -> int:
    """Begin a window between two clock readings and return its start."""
    clocks.begin(processes)
    start_ns = time.monotonic_ns()
    clocks.read_near_end(processes)
    return start_ns


def end_window_now(clocks: ProcessClocks, processes: dict[int, ObservedProcess], start_ns: int) -> list[ProcessTime]:
    clocks.read_near_end(processes)
    return clocks.end_window(processes, start_ns, time.monotonic_ns())


def test_clock_of_a_process_is_its_own_between_two_windows() -> None:
    clocks = ProcessClocks()
    with worker() as child:
        spun(child)
        start_ns = begin_window_now(clocks, seen(child.pid))
        before = read_process_ns(child.pid)
        after = spun(child)
        (found,) = end_window_now(clocks, seen(child.pid), start_ns)
        assert SPIN_NS <= after - before <= found.ns <= read_process_ns(child.pid)
        assert found.ns - (after - before) < SPIN_NS, "what it had before is not in the window"
        assert (found.pid, found.name, found.unread_ns) == (child.pid, "python3", 0)
        child.communicate()


def test_process_that_began_within_the_window_has_all_of_its_time() -> None:
    clocks = ProcessClocks()
    clocks.begin({})
    start_ns = time.monotonic_ns()
    time.sleep(0.02)  # /proc/PID/stat has the start time in ticks of 10 ms
    with worker() as child:
        least = spun(child)
        (found,) = end_window_now(clocks, seen(child.pid), start_ns)
        assert found.ns >= least
        child.communicate()


def test_process_that_ended_has_the_time_until_it_was_read_last() -> None:
    clocks = ProcessClocks()
    with worker() as child:
        spun(child)  # a process whose clock still shows no time is not read
        processes = seen(child.pid)
        start_ns = begin_window_now(clocks, processes)
        spun(child)
        clocks.poll(processes)
        child.communicate()
    read_ns = time.monotonic_ns()
    (found,) = end_window_now(clocks, {}, start_ns)
    assert found.ns >= SPIN_NS
    assert found.unread_ns > 0
    assert time.monotonic_ns() - found.unread_ns < read_ns + found.unread_ns
    assert end_window_now(clocks, processes, read_ns) == []


def test_parts_after_the_end_of_a_process_leave_its_unread_time_to_samples() -> None:
    clocks = ProcessClocks()
    with worker() as child:
        spun(child)  # a process whose clock still shows no time is not read
        processes = seen(child.pid)
        start_ns = begin_window_now(clocks, processes)
        spun(child)
        clocks.poll(processes)
        child.communicate()
    read_ns, ends = time.monotonic_ns(), []
    parts = []
    for _ in range(2):
        ends.append(time.monotonic_ns())
        parts += clocks.end_part({}, start_ns, ends[-1])
    first, second = parts
    assert first.ns >= SPIN_NS
    assert second.ns == 0
    assert first.began_ns == second.began_ns
    assert second.unread_ns == ends[1] - ends[0]
    assert first.unread_ns >= ends[0] - read_ns


def test_process_that_ran_before_it_was_seen_first_is_not_charged_for_that() -> None:
    clocks = ProcessClocks()
    with worker() as child:
        spun(child)
        clocks.begin({})
        times = end_window_now(clocks, seen(child.pid), time.monotonic_ns())
        assert all(each.ns < SPIN_NS for each in times)
        child.communicate()


def forked(process: subprocess.Popen[str], count: int) -> int:
    """Let a process start children one after the other. Return the time of all its children so far."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def test_parent_has_the_time_of_children_that_ended_without_a_reading() -> None:
    """Read none of the children in the first window. In the second one, read them now and then, as the agent does."""
    clocks = ProcessClocks()
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        before_ns = forked(parent, 3)
        start_ns = begin_window_now(clocks, seen(parent.pid))
        first_ns = forked(parent, 9)
        (found,) = end_window_now(clocks, seen(parent.pid), start_ns)
        assert abs(found.children_ns - (first_ns - before_ns)) < 3 * TICK_NS
        start_ns = time.monotonic_ns()
        assert parent.stdin
        assert parent.stdout
        parent.stdin.write("12\n")
        parent.stdin.flush()
        read: set[int] = set()
        while not select.select([parent.stdout], [], [], 0.013)[0]:
            starts = {pid: procfs.read_start_ticks(pid) for pid in (parent.pid, *find_descendants([parent.pid]))}
            running = {pid: process(start) for pid, start in starts.items() if start is not None}
            clocks.read_near_end(running)
            read |= running.keys()
        assert len(read) > 6
        second_ns = int(parent.stdout.readline())
        times = clocks.end_window(seen(parent.pid), start_ns, time.monotonic_ns())
        found_ns = sum(each.children_ns + each.ns * (each.pid != parent.pid) for each in times)
        assert abs(found_ns - (second_ns - first_ns)) < 3 * TICK_NS
        assert sum(each.ns for each in times if each.pid != parent.pid) > (second_ns - first_ns) / 4
        parent.communicate()


def test_time_of_unseen_children_is_unsampled_time_of_their_parent() -> None:
    before = window([4, 2])
    known = ProcessTime(100, 5, "p", 4 * PERIOD_NS, children_ns=3 * PERIOD_NS)
    after = with_exact_sums(before, [known])
    assert sums(after) == {100: 5 * PERIOD_NS, 101: 2 * PERIOD_NS}
    assert sums(with_exact_sums(before, [known._replace(children_ns=PERIOD_NS)])) == sums(before)
    idle = ProcessTime(7, 9, "sh", 0, children_ns=10**9)
    assert sums(with_exact_sums(window([3]), [ProcessTime(100, 5, "p", 30), idle])) == {100: 30, 7: 10**9}


def test_sum_of_scaled_values_is_exact_for_large_columns() -> None:
    profile = window([20])
    values = np.array([[1, 3 + nth] for nth in range(20)], np.int64)
    after = with_exact_sums(replace(profile, values=values), [ProcessTime(100, 5, "p", 10**15 + 1)])
    assert after.total == 10**15 + 1
    assert NO_SAMPLE.title not in [frame.title for frame in after.frames]


def test_services_that_lack_much_of_their_time_are_found_with_the_share() -> None:
    profile = labelled(window([4, 4]), lambda pid, _: RuleVerdict(f"s{pid}", (("service", f"s{pid}"),), ()))
    profile = replace(profile, values=profile.values * 10**9 // PERIOD_NS)
    assert profile.total == 8 * 10**9
    lacking = {"s100": 4 * 10**9, "s101": 110_000_000, "": 10**12, "idle": 200_000_000, "short": 90_000_000}
    assert find_unattributed(profile, lacking) == {"s100": 0.5, "idle": 1.0}


@pytest.mark.parametrize(("seconds", "excess"), [(1, 0), (21, 0), (40, 16.0)])
def test_more_time_than_all_processors_have_is_impossible(seconds: int, excess: float) -> None:
    profile = window([1])
    profile = replace(profile, duration_ns=10 * 10**9, values=profile.values.copy())
    profile.values[:, -1] = 0
    profile.values[0, -1] = seconds * 10**9
    assert excess_seconds(profile, 2) == pytest.approx(excess)
    assert excess_seconds(replace(profile, value_types=(ValueType("offcpu", "nanoseconds"),)), 2) == 0
