"""Tests with full ring buffers and at 10,000 samples a second: losses are counted and marked, the rest is correct."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyprof
from pyprof.model.profile import Frame
from tests.bpf.test_program import held
from tests.interpreters.known_calls import judge_parts, read_callers, record_calls
from tests.interpreters.pythons import HERE, running
from tests.interpreters.runs import functions
from tests.live.support import recording as native
from tests.live.support.ladders import ladder, rungs

pytestmark = [pytest.mark.live, pytest.mark.system]

BY_BPF = ("--collector", "bpf")
OF_1_MB = """import sys
from pyprof.collectors.bpf import kernel_program
kernel_program.choose_ring_size = lambda *_: 1 << 20
from pyprof.__main__ import main
main()
"""
LOST = "[not sampled: records lost]"


def ran_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until_ran(pid: int, seconds: float) -> None:
    """Wait until the process has used this many more seconds of processor time."""
    until, end = ran_s(pid) + seconds, time.monotonic() + 60
    while ran_s(pid) < until and time.monotonic() < end:
        time.sleep(0.02)
    assert ran_s(pid) >= until


@contextlib.contextmanager
def recorded(pid: int, output: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Record with a BPF ring for some 200 samples. Yield the running recorder, and interrupt it afterwards."""
    command = [sys.executable, "-c", OF_1_MB, "record", "-q", *BY_BPF, "-p", str(pid), "-o", str(output), *options]
    with subprocess.Popen(command, start_new_session=True) as recording:  # no front process
        try:
            end = time.monotonic() + 30
            while not held(recording.pid, "prog_id") and time.monotonic() < end:
                time.sleep(0.02)
            yield recording
            recording.send_signal(signal.SIGINT)
            assert recording.wait(timeout=60) == 0
        finally:
            recording.kill()


def named(frame: Frame) -> str:
    """Return the frame's name as collapsed stacks spell it."""
    file = frame.lines[0].file if frame.lines else ""
    return f"{frame.title} ({Path(file).name})" if file else frame.title


def test_stopped_sampler_counts_lost_samples_and_others_are_right(tmp_path: Path) -> None:
    output, summary = tmp_path / "out.pyprof", tmp_path / "summary.json"
    with running(HERE, "calls.py", "1") as process:
        callers = read_callers(process.stdout)
        with recorded(process.pid, output, "-r", "999", "--summary", str(summary)) as recording:
            until_ran(process.pid, 0.5)
            recording.send_signal(signal.SIGSTOP)
            until_ran(process.pid, 1.0)
            goes_on_ns = time.time_ns()
            recording.send_signal(signal.SIGCONT)
            until_ran(process.pid, 0.5)
    profile, found = pyprof.load(output), json.loads(summary.read_text())
    blocks, later = 0, 0
    for at, leaf in zip(profile.time_ns.tolist(), profile.stack.tolist(), strict=True):
        frames = [named(frame) for frame in profile.path(leaf)]
        blocks += LOST in frames
        later += at > goes_on_ns and "work (calls.py)" in frames
        judge_parts(frames, "calls.py", callers)
        assert functions(frames, "calls.py")[:1] in ([], ["<module>"], ["main"]), frames
    assert later > 100
    assert blocks
    lost = found["skipped"]
    assert lost > 400, "the ring has room for 200"
    assert found["errors"]["samples_lost"] == lost
    spent, missing = found["processor"]["spent_s"], found["processor"]["lost_s"]
    assert missing == pytest.approx(lost / 999, rel=0.1)
    assert found["samples"] / 999 + missing == pytest.approx(spent, rel=0.4)  # up to 30 % less on a busy machine
    assert any("records were lost" in note["text"] for note in found["notes"]), found["notes"]


def test_python_at_10_khz_has_right_stacks(tmp_path: Path) -> None:
    summary, total, partly = record_calls(HERE, tmp_path, *BY_BPF, "-r", "10000", least=500)
    assert total > 500
    assert partly <= total // 200 + 1, summary["errors"]
    assert summary["stops"]["count"] == 0
    enough_of_the_time(summary, 10_000)


def test_native_code_at_10_khz_has_right_stacks(tmp_path: Path) -> None:
    with native.running(ladder("ladder"), "spin", native.LIFE) as program:
        found = native.record(program.pid, tmp_path, *BY_BPF, rate=10_000, until=lambda found: len(found.stacks) > 3)
    ladders = {(f"{p}_thread", *rungs(p), f"{p}_top") for p in "abcd"}
    assert {stack[2:] for stack in found.stacks} == ladders
    assert found.summary["ends"] == {"root": found.samples}
    enough_of_the_time(found.summary, 10_000)


def enough_of_the_time(summary: dict[str, Any], rate_hz: int) -> None:
    """Assert that samples and counted losses cover most of the target's processor time."""
    taken = (summary["samples"] + summary["skipped"]) / rate_hz
    assert 0.5 < taken / summary["processor"]["spent_s"] < 1.2, summary["processor"]
