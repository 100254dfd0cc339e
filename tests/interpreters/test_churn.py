"""Tests of functions, threads and children that come and go while they are sampled: no wrong names, no side effects."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.collapsed import Stacks
from tests.interpreters.pythons import HERE, KINDS, OLDEST_AND_NEWEST, Python, running
from tests.interpreters.runs import PIECES_S, dump, record, stacks

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

MADE = re.compile(r"f_(\d+) \(file_(\d+)\.py\)")

CALL = re.compile(r"f_(\d+) \(file_\1\.py\);helper_(\d)")


def functions_made(found: Stacks) -> list[re.Match[str]]:
    return [match for frames, _ in found for frame in frames if (match := MADE.fullmatch(frame))]


def pairs(found: Stacks) -> list[tuple[str, str]]:
    """Return (N, K) for each function f_N that calls helper_K (alike.py)."""
    calls = [CALL.search(";".join(frames)) for frames, _ in found]
    return [(call[1], call[2]) for call in calls if call]


@KINDS
def test_functions_whose_memory_is_used_again_have_their_own_names(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    with running(python, "churn.py", "fork") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        summary = record(process.pid, output, "-s", until=lambda found: len(functions_made(found)) > 0)
        assert process.poll() is None
    made = functions_made(stacks(output))
    assert made
    assert all(match[1] == match[2] for match in made), "name of one function, file of another"
    assert not any("not read" in key for key in summary["errors"]), summary["errors"]


@OLDEST_AND_NEWEST
def test_code_objects_that_are_alike_to_the_last_pointer_have_their_own_names(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    with running(python, "alike.py", *(["1"] if python.minor >= 12 else [])) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        record(process.pid, output, until=lambda found: len(pairs(found)) > 20)
    found = pairs(stacks(output))
    assert len(found) > 20
    assert {int(function) % 7 == int(helper) for function, helper in found} == {True}


@OLDEST_AND_NEWEST
def test_short_threads_have_their_frames_and_compute_correctly(python: Python, tmp_path: Path) -> None:
    """Record 200 threads a second, each with a new function from exec, with eval, garbage collection and forked
    children.
    """
    output = tmp_path / "out.collapsed"
    with running(python, "storm.py", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        summary = record(process.pid, output, "-s", "-i", "-d", "2", "--native", "all", "--threads")
        assert process.poll() is None
        counted = json.loads(process.communicate("", timeout=60)[0])
    assert counted["wrong"] == 0
    assert counted["threads"] > 100
    assert process.returncode == 0
    found = stacks(output)
    made = functions_made(found)
    assert made
    assert all(match[1] == match[2] for match in made), "name of one function, file of another"
    begun = [
        (frames, count) for frames, count in found if any("thread_run" in frame or ")" in frame for frame in frames)
    ]
    threads = [(frames, count) for frames, count in begun if not any(frame == "main (storm.py)" for frame in frames)]
    named = sum(count for frames, count in threads if any(frame.endswith(".py)") for frame in frames))
    total = sum(count for _, count in threads)
    assert named > 0.75 * total, (named, total, summary["errors"])


@pytest.mark.parametrize("collector", ["bpf", "ptrace"])
def test_lines_are_those_of_the_function_that_was_there(collector: str, tmp_path: Path) -> None:
    """Check that function f_N has lines N to N + 4."""
    output = tmp_path / "out.speedscope.json"
    made: list[tuple[int, int | None]] = []
    with running(HERE, "churn.py") as process:
        assert process.stdout is not None
        process.stdout.readline()
        for seconds in PIECES_S:
            record(process.pid, output, "--collector", collector, "-d", str(seconds))
            frames = json.loads(output.read_text())["shared"]["frames"]
            ours = [frame for frame in frames if re.fullmatch(r"f_\d+", frame["name"])]
            made += [(int(frame["name"][2:]), frame.get("line")) for frame in ours]
            if len(made) >= 10:
                break
    assert len(made) >= 10
    assert all(line is None or number <= line <= number + 4 for number, line in made)


def test_target_that_execs_another_python_is_read_anew() -> None:
    code = (
        "import os, sys, time\n"
        "print('before', flush=True)\n"
        "sys.stdin.readline()\n"
        "os.execv(sys.executable, [sys.executable, '-c', "
        "'import time\\ndef second(): print(1, flush=True); time.sleep(1000)\\nsecond()'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "before\n"
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "1\n"
            time.sleep(0.1)
            names = [frame["function"] for frame in dump(process.pid)["threads"][0]["frames"]]
            assert names[1:3] == ["second", "<module>"]
        finally:
            process.kill()


def test_process_without_python_has_native_stacks_and_no_complaint() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            time.sleep(0.2)
            found = dump(process.pid)
            (thread,) = found["threads"]
            assert thread["interpreter"] is None
            assert {frame["kind"] for frame in thread["frames"]} <= {"native", "inline"}
        finally:
            process.kill()
