"""Tests of wakers and of waits by lock, against programs that measure both themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.bpf import locks_and_wakers
from pyprof.collectors.bpf.locks_and_wakers import CALLS
from pyprof.collectors.combined.planner import collect_facts, describe_facts
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.sampled_arch import PERF_ARCHES
from pyprof.collectors.sampling_source_plan import make_plan
from pyprof.model.arch.syscalls import call_names
from pyprof.options import CollectOptions
from tests import warm
from tests.interpreters.pythons import OLDEST_AND_NEWEST, PROGRAMS, Python
from tests.live.support.recording import running
from tests.perf.test_waits import Program, Waits, program, started
from tests.support import PROGRAMS as NATIVE
from tests.support import build

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

__all__ = ["program"]

NOBODY = "[woken by a timer or an interrupt]"
NOT_KNOWN = "[a lock that is not known]"
FOR_PROCESSOR = "[waiting for a processor]"
PAIRS = {"long": ("long_a", "long_b"), "short": ("short_a", "short_b")}


def by_waker(waits: Waits, thread: str, *names: str) -> dict[str, float]:
    """Return the seconds of the thread's stacks that contain these frames, by waker.

    The key "" stands for waits that have no waker yet.
    """
    found: dict[str, float] = {}
    for stack, seconds in waits.seconds[thread].items():
        if all(name in stack for name in names):
            woken = next((name for name in stack if name.startswith("[woken by")), "")
            who = woken if woken in ("", NOBODY) else woken.removeprefix("[woken by ").rpartition(" (")[0]
            found[who] = found.get(who, 0.0) + seconds
    return found


def for_processor(waits: Waits, thread: str) -> float:
    """Return the seconds in which the thread was awake and waited for a processor: such a stack has no waker."""
    return sum(seconds for stack, seconds in waits.seconds[thread].items() if stack[-1] == FOR_PROCESSOR)


def inside(stack: tuple[str, ...]) -> tuple[str, ...]:
    """Return the waker's frames of a stack."""
    at = next((n for n, name in enumerate(stack) if name.startswith("[woken by")), len(stack))
    return stack[at + 1 :]


def test_calls_of_both_machines_are_the_same_by_name_here_and_in_the_program() -> None:
    source = (Path(locks_and_wakers.__file__).parent / "sampler.bpf.c").read_text()
    in_program = [
        {int(number) for number in re.findall(r"== (\d+)", line)}
        for line in re.findall(r"#define WAITS_FOR_FUTEX.*", source)
    ]
    assert set(CALLS) == set(PERF_ARCHES)
    assert in_program == [CALLS[machine].futexes for machine in ("aarch64", "x86_64")]
    named = {
        machine: [
            sorted(str(call_names(machine).get(number, number)) for number in numbers)
            for numbers in (calls.futexes, calls.naps, calls.signals, calls.wakes)
        ]
        for machine, calls in CALLS.items()
    }
    assert named["aarch64"] == named["x86_64"]
    assert [sum(not name.isdigit() for name in names) for names in named["x86_64"]] == [1, 2, 5, 3]


def test_waits_for_each_lock_have_their_time_and_the_stack_of_who_had_it(tmp_path: Path) -> None:
    path = build(NATIVE / "c_locks.c", tmp_path / "locks", "-O1", "-g", "-pthread")
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        locks = dict(zip(PAIRS, (f"[lock {word}]" for word in process.stdout.readline().split()[1:]), strict=True))
        process.stdout.readline()
        target = Program(process, tmp_path)
        for seconds in (2.0, 6.0, 18.0):  # the truth also covers the start of pyprof, which may take seconds
            before, began = target.truth(), time.monotonic()
            waits = target.record(mode="lock", collector="auto", seconds=seconds)
            after, passed = target.truth(), time.monotonic() - began
            if passed < 1.2 * waits.passed:
                break
        process.kill()
    for lock, pair in PAIRS.items():
        for thread, other in zip(pair, pair[::-1], strict=True):
            true = (after[thread][0] - before[thread][0]) / 1e9 / passed
            found = by_waker(waits, thread, locks[lock], "wait_for_it")
            assert sum(found.values()) / waits.passed == pytest.approx(true, abs=0.06), thread
            assert waits.total(thread) == pytest.approx(sum(found.values()), rel=0.02)
            assert found[other] > 0.9 * (sum(found.values()) - for_processor(waits, thread)), found
            had = [inside(stack) for stack in waits.seconds[thread] if f"[woken by {other}" in " ".join(stack)]
            assert had
            assert all("hold_it" in frames and "let_it_go" in frames for frames in had)
    assert waits.total("locks") == 0, "it waits for its input"


LOCKED = """
import threading
lock = threading.Lock()
lock.acquire()
threading.Thread(target=lock.acquire).start()
print("ready", flush=True)
"""


def test_long_wait_for_a_lock_has_its_part_in_each_window(tmp_path: Path) -> None:
    with running(sys.executable, "-c", LOCKED, stdin=subprocess.PIPE) as process:
        Program(process, tmp_path).record("--every", "1", "--idle", mode="lock", collector="bpf", seconds=3.4)
    windows = sorted(tmp_path.glob("*.json"))
    assert len(windows) >= 2
    for path in windows:
        waits = Waits()
        waits.read(path)
        both = sum(map(waits.total, [*waits.seconds]))
        assert 0.85 * 2 * waits.passed - 0.3 < both <= 2.001 * waits.passed  # sleepers are read after the beginning
        assert "waits_clipped" not in waits.errors


@OLDEST_AND_NEWEST
def test_waits_for_the_gil_are_named_and_have_the_function_that_held_it(python: Python, tmp_path: Path) -> None:
    with running(*python.command, "-u", str(PROGRAMS / "gil_fight.py"), stdin=subprocess.PIPE) as process:
        for tid in procfs.list_tasks(process.pid):  # a preemption between two timed waits would separate them
            os.sched_setscheduler(tid, os.SCHED_RR, os.sched_param(1))
        waits = Program(process, tmp_path).record(mode="lock", collector="bpf", seconds=1.5)
    total = held = by_timer = 0.0
    wakers: dict[str, float] = {}
    for thread in waits.seconds.values():
        for stack, seconds in thread.items():
            if stack[-1] != FOR_PROCESSOR and "victim" in stack[: len(stack) - len(inside(stack))]:
                if NOT_KNOWN in stack:  # asleep when the recording began, but awake when its system call was read
                    continue
                assert "[GIL]" in stack, stack
                total += seconds
                by_timer += seconds * (NOBODY in stack)
                held += seconds * ("hog" in inside(stack))
                waker = " ".join(name for name in stack if name.startswith("[woken by")) + ": " + stack[-1]
                wakers[waker] = wakers.get(waker, 0.0) + seconds
    assert total > 0.2
    assert by_timer < 0.3 * total, wakers
    assert held > 0.6 * total, wakers


def test_a_wait_has_the_stack_of_the_thread_that_ended_it(program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path, "reads", "ticks", "naps") as target:
        waits = target.record("--wakers", mode="offcpu", collector="bpf", seconds=2.0)
    found = by_waker(waits, "reads", "wait_tick")
    assert found["ticks"] > 0.9 * (sum(found.values()) - for_processor(waits, "reads")), found
    of_ticks = [stack for stack in waits.seconds["reads"] if "[woken by ticks" in " ".join(stack)]
    assert any("ticks" in inside(stack) for stack in of_ticks), of_ticks
    assert by_waker(waits, "naps")[NOBODY] > 0.9 * (waits.total("naps") - for_processor(waits, "naps"))
    assert waits.total("reads") == pytest.approx(waits.passed, rel=0.05)


def test_a_wait_is_accounted_when_it_has_ended_or_the_recording_has(program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path, "endless") as target:
        waits = target.record("--wakers", mode="offcpu", collector="bpf", seconds=1.0)
    assert by_waker(waits, "endless").keys() == {""}
    assert waits.total("endless") == pytest.approx(waits.passed, rel=0.06)


@pytest.mark.parametrize("options", [("--mode", "lock"), ("--mode", "offcpu", "--wakers")])
def test_other_collectors_refuse_in_one_sentence(options: tuple[str, ...]) -> None:
    for collector in ("perf", "ptrace"):
        done = warm.run("record", *options, "--collector", collector, "-p", "1")
        assert done.returncode == 2
        assert "--wakers and --mode lock need a program in the kernel (BPF)" in done.stderr
    done = warm.run("record", "--wakers", "-p", "1")
    assert "--wakers needs waits" in done.stderr


def test_whoever_has_no_rights_hears_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "read_thread_status", lambda tid: {"CapEff": "0"})
    options = CollectOptions(idle=True, wakers=True)
    facts = collect_facts((0,), options)
    with pytest.raises(CollectorRefused, match="CAP_BPF"):
        make_plan(facts, options)
    (found,) = [each for each in describe_facts(facts, CollectOptions()) if "--mode lock" in each.text]
    assert (found.ok, found.text) == (False, "--wakers, --mode lock: no: they need --collector bpf")
