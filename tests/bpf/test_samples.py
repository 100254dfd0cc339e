"""Tests of recordings with BPF: frames of one instant, alternate stacks, children, full ring buffers."""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pyprof.collectors.bpf import samples_from_ring
from pyprof.collectors.bpf.kernel_program import BpfSampler, KernelTargets
from pyprof.collectors.bpf.ring_buffer_records import STACK_SLACK, LossReason
from pyprof.collectors.bpf.samples_from_ring import BpfSource
from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.ring_buffer_records import list_online_cpus
from pyprof.interpreters.cpython.bpf_frame_decoder import MAX_ROWS
from pyprof.problem_counters import Diagnostics
from tests import warm
from tests.chance import most
from tests.interpreters.known_calls import record_calls
from tests.interpreters.pythons import KINDS, Python
from tests.interpreters.runs import count, stacks
from tests.live.support import recording as native
from tests.perf.test_partial_stops import feedback
from tests.support import PROGRAMS, build

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

BY_BPF = ("--collector", "bpf")


@KINDS
def test_every_sample_is_merged_no_stack_is_impossible_and_nothing_is_stopped(python: Python, tmp_path: Path) -> None:
    summary, total, partly = record_calls(python, tmp_path, *BY_BPF)
    assert partly <= total // 200 + 1, summary["errors"]
    assert summary["stops"]["count"] == 0


def test_handler_on_its_own_stack_stands_on_the_one_that_it_interrupted(tmp_path: Path) -> None:
    program = build(PROGRAMS / "ladder_altstack.c", tmp_path / "altstack", "-O1", "-lrt")

    def enough(recording: native.Recording) -> bool:
        return sum(n for stack, n in recording.stacks.items() if "handler_top" in stack) > 20

    with native.running(program, "spin", native.LIFE) as target:
        found = native.record(target.pid, tmp_path, *BY_BPF, until=enough)
    assert enough(found)
    inside = {stack: n for stack, n in found.stacks.items() if "handler_top" in stack}
    whole = sum(n for stack, n in inside.items() if "main" in stack and "s_01" in stack)
    assert whole >= 0.99 * sum(inside.values()) - 1
    assert found.summary["stops"]["count"] == 0


DEEP = """import sys, threading, time
def deep(n):
    if n: return deep(n - 1)
    until = time.process_time() + float(sys.argv[1])
    while time.process_time() < until: pass
sys.setrecursionlimit(10**5)
threading.stack_size(512 << 20)
thread = threading.Thread(target=deep, args=(3000,))
thread.start()
thread.join()
"""


@pytest.mark.parametrize("python", [p for p in KINDS.args[1] if p.minor > 10], ids=lambda python: python.name)
def test_deep_recursion_has_its_leaf_functions_and_a_hint(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "deep.collapsed"
    for seconds in ("0.5", "2", "8"):  # on a busy machine the interpreter is detected late
        command = ("-r", "399", "-o", str(output), *BY_BPF, "--", *python.command, "-c", DEEP, seconds)
        done = warm.run("record", *command)
        assert output.exists(), done.stderr
        deep = [(frames, n) for frames, n in stacks(output) if frames.count("deep (<string>)") > 100]
        # a shorter stack may have a merge marker because it was sampled within a call
        cut = [(frames, n) for frames, n in deep if frames[0].startswith("[truncated")]
        if count(cut) > 10:
            break
    assert count(cut) > 10
    for frames, _ in cut:
        assert frames[0] == "[truncated: more than 1,024 functions, --collector ptrace copies them]"
        assert frames.count("deep (<string>)") == MAX_ROWS
    rest = [frames for frames, _ in deep if not frames[0].startswith("[truncated")]
    assert all(frames.count("deep (<string>)") < MAX_ROWS for frames in rest)


def test_kernel_copies_as_many_frames_as_the_reader_of_them_believes() -> None:
    header = (Path(samples_from_ring.__file__).parent / "sampler.h").read_text()
    assert f"#define MOST_FRAMES {MAX_ROWS} " in header


def test_stacks_of_threads_that_change_mappings_from_their_first_moment_are_whole(tmp_path: Path) -> None:
    """Record threads that change mappings all the time.

    The program cannot walk the VMAs, so it cannot find stack ends.
    """
    program = build(PROGRAMS / "c_mappings.c", tmp_path / "mappings", "-O1", "-pthread")
    reason = "stack_end_unknown"
    with native.running(program) as target:
        options = (*BY_BPF, "--stack-size", "64K")
        found = native.record(
            target.pid, tmp_path, *options, rate=999, until=lambda found: found.summary["errors"].get(reason, 0) > 20
        )
    assert found.summary["errors"][reason] > 20
    assert not any("stack not readable" in stack[0] for stack in found.stacks)
    cut = [stack for stack in found.stacks if "memory given up" in stack[0]]
    assert all(stack[1:] == ("start_thread",) for stack in cut), "a thread that ends has no memory any more"


def test_children_of_a_command_are_sampled_from_their_first_moment(tmp_path: Path) -> None:
    program = build(PROGRAMS / "c_storm.c", tmp_path / "storm", "-O1", "-lpthread")
    for what, least in (("fork", 0.5), ("threads", 0.05)):  # threads spend most time on creation and exit
        output = tmp_path / f"{what}.collapsed"
        command = ("-r", "999", "-o", str(output), *BY_BPF, "--", str(program), what, "300")
        assert warm.run("record", "-q", *command, timeout=120).returncode == 0
        found = stacks(output)
        names = sum(n for frames, n in found if any(frame.startswith("work") for frame in frames))
        assert count(found) > 20
        assert names > least * count(found), what


ENDING = """
import os, sys
for n in range(int(sys.argv[1])):
    if not os.fork():
        held = b"x" * (1 << 27)
        os._exit(0)
    os.wait()
os.execv("/bin/true", ["true"])
"""


def test_process_whose_memory_the_kernel_takes_apart_has_ended_and_is_not_cut_by_us(tmp_path: Path) -> None:
    output, summary = tmp_path / "ending.collapsed", tmp_path / "summary.json"
    for children in ("30", "300"):
        options = ("-r", "999", "-o", str(output), "--summary", str(summary))
        done = warm.run("record", "-q", *options, *BY_BPF, "--", sys.executable, "-c", ENDING, children, timeout=120)
        assert done.returncode == 0, done.stderr
        found = stacks(output)
        at_the_end = [(frames, n) for frames, n in found if frames[-1] in ("_exit", "__GI__exit", "execve")]
        if count(at_the_end) > 20:
            break
    assert count(at_the_end) > 20
    # since Linux 6.16 the stack is copied when a process begins to exit; otherwise its memory may be gone
    gone = [(frames, n) for frames, n in found if "memory given up (exit or exec)" in frames[0]]
    cut = [(frames, n) for frames, n in at_the_end if "truncated" in frames[0]]
    assert count(cut) == count([(frames, n) for frames, n in cut if "memory given up" in frames[0]])
    # a page of a stack that was not in memory is read later, and some processes have ended by then
    assert count(gone) - count(cut) <= 1 + count(gone) // 20
    ends = json.loads(summary.read_text())["ends"]
    assert ends.get("gone", 0) == count(gone)
    assert ends.get("unreadable", 0) <= 1 + count(at_the_end) // 10


SHORT = """
import os, time
def work():
    end = time.process_time() + 0.01
    while time.process_time() < end: sum(range(500))
for n in range(60):
    if not os.fork():
        exec("def fresh(): work()")
        fresh()
        os._exit(0)
    os.wait()
"""


def test_functions_of_children_that_are_gone_when_names_are_read_have_theirs(tmp_path: Path) -> None:
    output, summary = tmp_path / "out.collapsed", tmp_path / "summary.json"
    command = ("-r", "999", "-o", str(output), "--summary", str(summary), *BY_BPF, "--", sys.executable, "-c", SHORT)
    done = warm.run("record", "-q", *command, timeout=120)
    assert done.returncode == 0, done.stderr
    found = stacks(output)
    working = sum(n for frames, n in found if "work (<string>)" in frames)
    below = sum(n for frames, n in found if "work (<string>)" in frames and "fresh (<string>)" in frames)
    unnamed = sum(n for frames, n in found if any("before its name was read" in frame for frame in frames))
    assert below == working > 200
    assert unnamed <= most(0.005, count(found)), json.loads(summary.read_text())["errors"]


def test_stacks_of_shallow_threads_do_not_make_the_copies_of_others_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample a process whose stacks grow to 30 KB at once, as during imports."""
    limits: list[int] = []
    monkeypatch.setattr(
        BpfSampler, "set_limits", lambda sampler, size, min_wait_ns, copy_time_divisor: limits.append(size)
    )
    source = BpfSource(
        BpfSampler(KernelTargets(99), 64 << 10, list_online_cpus()), Diagnostics(), itertools.count(1).__next__, None
    )
    try:
        for reach in (500, 30_000, 200_000, 2_000_000):
            source.learn(feedback([1], reach))
    finally:
        source.close()
    assert limits == [128 << 10, 64 << 10, 120_000, 800_000, 1 << 20]


@pytest.mark.parametrize("placed", [False, True])
def test_arguments_and_environment_of_a_program_are_not_copied(placed: bool) -> None:
    """Record a program with long arguments, which lie above the main stack in its mapping and are often longer."""
    sampler = BpfSampler(KernelTargets(500), 1 << 20, list_online_cpus())
    source = BpfSource(sampler, Diagnostics(), itertools.count(1).__next__, None)
    try:
        words = (sys.executable, "-c", "print('ready', flush=True)\nwhile True: pass", "x" * 50_000)
        with native.running(*words) as target:
            if placed:
                source.processes.add_processes([target.pid])
            else:
                source.processes.add_before_exec([target.pid])
            end = time.monotonic() + 20
            while sampler.read_counts()[0][LossReason.SAMPLED] < 5 and time.monotonic() < end:
                time.sleep(0.05)
            first = procfs.parse_stat(Path(f"/proc/{target.pid}/stat").read_bytes()).stack
            samples = source.take_samples()
        ends = samples.base + samples.size.astype(np.uint64)
        assert set(ends.tolist()) == {(first + STACK_SLACK) & ~7}
        assert int(samples.size.max()) < 50_000
    finally:
        source.close()


def test_samples_that_find_no_room_are_counted() -> None:
    sampler = BpfSampler(KernelTargets(4000), 64 << 10, list_online_cpus())
    source = BpfSource(sampler, Diagnostics(), itertools.count(1).__next__, None)
    try:
        with native.running("sh", "-c", "echo ready; while :; do :; done") as target:
            source.processes.add_processes([target.pid])
            end = time.monotonic() + 20
            while not sampler.read_counts()[0][LossReason.RING_FULL] and time.monotonic() < end:
                time.sleep(0.05)
            sampler.stop_program()
            counts, histogram = sampler.read_counts()
            samples = source.take_samples()
            assert 0 < len(samples) == counts[LossReason.SAMPLED] == sum(histogram)
            assert set(samples.pid.tolist()) == {target.pid}
            source.release_samples()
            assert source.lost == counts[LossReason.RING_FULL] > 0
    finally:
        source.close()


def test_samples_of_the_opening_leave_their_room_to_those_of_the_recording() -> None:
    sampler = BpfSampler(KernelTargets(4000), 64 << 10, list_online_cpus())
    source = BpfSource(sampler, Diagnostics(), itertools.count(1).__next__, None)

    def sample_until_full(before: int) -> None:
        end = time.monotonic() + 20
        while sampler.read_counts()[0][LossReason.RING_FULL] == before and time.monotonic() < end:
            time.sleep(0.05)

    try:
        with native.running("sh", "-c", "echo ready; while :; do :; done") as target:
            source.processes.add_processes([target.pid])
            sample_until_full(0)
            begun_ns = time.monotonic_ns()
            source.discard_samples(begun_ns)
            lost_before = sampler.read_counts()[0][LossReason.RING_FULL]
            sample_until_full(lost_before)
            sampler.stop_program()
            samples = source.take_samples()
            assert len(samples) > 0
            assert int(samples.time_ns.min()) > begun_ns
            source.release_samples()
            lost = sampler.read_counts()[0][LossReason.RING_FULL]
            assert 0 < source.lost <= lost
            assert source.lost < lost
    finally:
        source.close()
