"""Tests that the BPF program records processes under gdb or strace without disturbing these tools."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest

import pyprof
from tests.cli.support import one_sentence
from tests.interpreters.known_calls import judge_parts, read_callers
from tests.interpreters.pythons import HERE, running
from tests.interpreters.runs import functions
from tests.live.support import recording as native
from tests.support import need
from tests.warm import run

pytestmark = [pytest.mark.live, pytest.mark.system]

EVALUATOR = "_PyEval_EvalFrameDefault"


def fields(pid: int, name: str) -> set[str]:
    """Return the values of a field in /proc/PID/task/*/status of all threads."""
    texts = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return {found[1] for text in texts if (found := re.search(rf"^{name}:\s+(\S+)", text, re.MULTILINE))}


def until_traced(pid: int, tracer: subprocess.Popen[str]) -> None:
    """Wait until the tracer has attached to all threads and they run."""
    end = time.monotonic() + 60
    while fields(pid, "TracerPid") != {str(tracer.pid)} or "t" in fields(pid, "State"):
        assert tracer.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


@contextlib.contextmanager
def target() -> Iterator[tuple[subprocess.Popen[str], Mapping[str, Set[str]]]]:
    """Run calls.py with two threads and yield the process and the callers of each of its functions."""
    with running(HERE, "calls.py", "1") as process:
        callers = read_callers(process.stdout)
        yield process, callers


def judged(found: native.Recording, callers: Mapping[str, Set[str]]) -> None:
    """Assert that a recording has no ptrace stops and only possible stacks."""
    assert found.samples > 20
    assert found.summary["stops"]["count"] == 0
    named = 0
    for stack, n in found.stacks.items():
        judge_parts([*stack], "calls.py", callers)
        named += n * (functions([*stack], "calls.py")[:1] in (["<module>"], ["main"]))
    assert named >= 0.95 * found.samples


def has_enough(found: native.Recording) -> bool:
    return found.samples > 20


def test_process_under_gdb_is_recorded_and_gdb_sees_its_stacks(tmp_path: Path) -> None:
    with target() as (process, callers):
        command = [need("gdb"), "-nx", "-q", "-iex", "set pagination off", "-p", str(process.pid), "-ex", "continue"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as gdb:
            until_traced(process.pid, gdb)
            for _ in range(2):
                found = native.record(process.pid, tmp_path, "--collector", "bpf", until=has_enough)
                judged(found, callers)
                assert fields(process.pid, "TracerPid") == {str(gdb.pid)}
                said = stacks_by(gdb, process.pid)
                assert len(re.findall(r"^Thread \d+ \(", said, re.MULTILINE)) == 2, said
                assert said.count(EVALUATOR) >= 2, said
                until_traced(process.pid, gdb)
            gdb.kill()
        assert process.poll() is None


def stacks_by(gdb: subprocess.Popen[str], pid: int) -> str:
    """Interrupt gdb, return its backtraces of all threads, and let the process continue."""
    assert gdb.stdin
    assert gdb.stdout
    gdb.stdin.write("thread apply all bt\necho \\nthat is all\\n\ncontinue\n")
    gdb.stdin.flush()
    os.kill(pid, signal.SIGINT)  # gdb receives the signal and stops all threads
    lines = iter(gdb.stdout.readline, "that is all\n")
    return "".join(lines)


def test_gdb_that_comes_to_a_recording_works_and_samples_go_on(tmp_path: Path) -> None:
    with target() as (process, _), pyprof.attach(process.pid, collector="bpf", rate=499) as recording:

        def more(than: int) -> int:
            end = time.monotonic() + 60
            while (count := len(native.names(recording.peek()))) <= than + 20 and time.monotonic() < end:
                time.sleep(0.1)
            assert count > than + 20
            return count

        before = more(0)
        command = [need("gdb"), "-nx", "-batch", "-p", str(process.pid), "-ex", "thread apply all bt"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.count(EVALUATOR) >= 2, done.stderr
        more(before)
        assert recording.stop().summary.stops.count == 0


def test_process_under_strace_is_recorded_and_no_call_of_it_fails(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with target() as (process, callers):
        command = [need("strace"), "-f", "-q", "-o", str(log), "-p", str(process.pid)]
        with subprocess.Popen(command, text=True) as strace:
            until_traced(process.pid, strace)
            found = native.record(process.pid, tmp_path, "--collector", "bpf", until=has_enough)
            assert fields(process.pid, "TracerPid") == {str(strace.pid)}
            strace.terminate()
    judged(found, callers)
    calls = [line for line in log.read_text().splitlines() if "futex(" in line]
    assert len(calls) > 20, "two threads that wait for each other's lock"
    assert not [line for line in calls if "EINTR" in line or "ERESTART" in line]


def test_whoever_asks_for_stops_is_told_who_traces_it(tmp_path: Path) -> None:
    with target() as (process, _):
        command = [need("strace"), "-f", "-q", "-o", os.devnull, "-p", str(process.pid)]
        with subprocess.Popen(command, text=True) as strace:
            until_traced(process.pid, strace)
            done = run("record", "--collector", "ptrace", "-p", str(process.pid), "-o", str(tmp_path / "x.html"))
            strace.terminate()
    assert done.returncode == 1
    assert f"traced already, by process {strace.pid} (strace): it cannot be stopped" in one_sentence(done)
