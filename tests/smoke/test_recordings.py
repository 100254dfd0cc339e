"""Tests with short recordings of real programs, as any user may make them: own processes and default options.

Each test records until it has enough samples, never for a fixed wall time, so that a busy machine only makes it slower.
"""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pyprof
from pyprof.errors import AccessDenied
from pyprof.model.profile import FrameKind
from tests.support import build, missing

pytestmark = [pytest.mark.system, pytest.mark.smoke]

PROGRAMS = Path(__file__).parent / "programs"
MIN_SAMPLES = 400
MAX_Z = 4.9
"""Number of standard deviations that a correct share exceeds once in a million recordings."""
SLEEPER = """
import sys, time
def outer(): inner()
def inner():
    print("ready", flush=True)
    time.sleep(1000)
outer()
"""


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program with a pipe as standard input until the block ends."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module", autouse=True)
def _may_trace() -> None:
    """Skip the test if this user may not trace other processes."""
    with running(sys.executable, "-c", SLEEPER) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            pyprof.dump(process.pid)
        except AccessDenied as error:
            missing(f"needs the right to trace this user's processes: {error}")


def run_pyprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyprof", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def record_until(pid: int, samples: int = MIN_SAMPLES) -> pyprof.Profile:
    """Record a process until there are this many samples."""
    with pyprof.attach(pid, rate=499) as recording:
        while recording.running and count_sampled(recording.peek()) < samples:
            recording.wait(0.2)
        return recording.stop()


def read_spent(file: Path) -> tuple[int, int]:
    heavy, light = struct.unpack_from("<2q", file.read_bytes())
    return heavy, light


def count_samples(profile: pyprof.Profile, function: str) -> int:
    return sum(
        any(line.function.rpartition(".")[2] == function for frame in profile.path(int(node)) for line in frame.lines)
        for node in profile.stack
    )


def count_sampled(profile: pyprof.Profile) -> int:
    """Return the number of samples. Rows without a frame hold time that was not sampled, on a busy machine."""
    return sum(any(frame.kind != FrameKind.MARKER for frame in profile.path(int(node))) for node in profile.stack)


def check_shares(command: list[str], file: Path) -> None:
    """Compare the shares of two functions with the processor time that the program measures."""
    with running(*command, str(file)) as process:
        while not file.exists() or file.stat().st_size < 16 or not read_spent(file)[0]:
            assert process.poll() is None
        before = read_spent(file)
        profile = record_until(process.pid)
        after = read_spent(file)
    heavy, light = count_samples(profile, "heavy"), count_samples(profile, "light")
    assert heavy + light >= 0.9 * count_sampled(profile) > 0
    spent = [late - early for early, late in zip(before, after, strict=True)]
    truth = spent[0] / sum(spent)
    found = heavy / (heavy + light)
    deviation = math.sqrt(truth * (1 - truth) / (heavy + light))
    assert abs(found - truth) < MAX_Z * deviation, f"heavy() has {found:.1%} of the samples and {truth:.1%} of the time"


def test_python_functions_have_their_shares_of_the_time(tmp_path: Path) -> None:
    check_shares([sys.executable, str(PROGRAMS / "shares.py")], tmp_path / "spent")


def test_native_functions_have_their_shares_of_the_time(tmp_path: Path) -> None:
    program = build(PROGRAMS / "shares.c", tmp_path / "shares", "-O2", "-g", "-pthread")
    check_shares([str(program)], tmp_path / "spent")


def test_dump_of_a_sleeping_program_shows_its_functions_in_order() -> None:
    with running(sys.executable, "-c", SLEEPER) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        done = run_pyprof("dump", "-p", str(process.pid))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (inner,) = (n for n, line in enumerate(lines) if "inner" in line)
    (outer,) = (n for n, line in enumerate(lines) if "outer" in line)
    assert inner < outer


def test_command_and_its_children_are_recorded_until_it_ends(tmp_path: Path) -> None:
    """Record a shell with two Python programs, which end once they have used a second of processor time."""
    work = "import time\ndef spin():\n while time.process_time() < 1: sum(range(1000))\nspin()"
    script = '"$0" -c "$1" & "$0" -c "$1"; wait'
    out = tmp_path / "child_processes.pyprof"
    done = run_pyprof("record", "-o", str(out), "--", "sh", "-c", script, sys.executable, work)
    assert done.returncode == 0, done.stderr
    profile = pyprof.load(out)
    spinning = {thread.pid for number, thread in enumerate(profile.threads) if (profile.thread == number).any()}
    assert len(spinning) >= 2
    assert count_samples(profile, "spin") > 20


def test_recording_becomes_the_same_stacks_in_each_format(tmp_path: Path) -> None:
    out = tmp_path / "one.pyprof"
    with running(sys.executable, str(PROGRAMS / "shares.py"), str(tmp_path / "spent")) as process:
        record_until(process.pid, 50).save(out)
    written = {}
    for name in ("a.html", "a.collapsed", "a.speedscope.json", "a.pb.gz"):
        done = run_pyprof("report", str(out), "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        written[name] = (tmp_path / name).read_bytes()
    assert b"heavy" in written["a.html"]
    assert b"heavy" in written["a.collapsed"]
    assert any(
        frame["name"].startswith("heavy") for frame in json.loads(written["a.speedscope.json"])["shared"]["frames"]
    )
    assert written["a.pb.gz"][:2] == b"\x1f\x8b"


def test_top_prints_one_table_of_a_running_program(tmp_path: Path) -> None:
    with running(sys.executable, str(PROGRAMS / "shares.py"), str(tmp_path / "spent")) as process:
        for _ in range(50):  # on a busy machine an interval may have no sample
            done = run_pyprof("top", "--once", "-r", "499", "-p", str(process.pid))
            if "heavy" in done.stdout:
                break
    assert done.returncode == 0, done.stderr
    assert "heavy" in done.stdout


def test_target_runs_on_after_its_profiler_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "spent"
    with running(sys.executable, str(PROGRAMS / "shares.py"), str(file)) as process:
        command = [sys.executable, "-m", "pyprof", "record", "-p", str(process.pid), "-o", str(tmp_path / "out.html")]
        nowhere = subprocess.DEVNULL
        # without a front process, so that the sampler itself is killed
        with subprocess.Popen(command, stdin=nowhere, stderr=nowhere, start_new_session=True) as profiler:
            before = read_spent(file)[0] if file.exists() else 0
            while not file.exists() or read_spent(file)[0] < before + 500_000_000:
                assert profiler.poll() is None
                os.sched_yield()
            profiler.kill()
        killed = read_spent(file)[0]
        while read_spent(file)[0] < killed + 200_000_000:
            assert process.poll() is None
            os.sched_yield()


def test_functions_keep_their_names_while_a_recording_is_peeked_at(tmp_path: Path) -> None:
    """Peek repeatedly.

    Only a closed window may let the sampler drop functions; a peek once counted as an empty window.
    """
    with (
        running(sys.executable, str(PROGRAMS / "shares.py"), str(tmp_path / "spent")) as process,
        pyprof.attach(process.pid, rate=499) as recording,
    ):
        seen = 0
        for _ in range(5):  # the bug dropped functions at the second peek
            while recording.running and recording.samples < seen + 20:
                recording.wait(0.05)
            seen = recording.samples
            recording.peek()
        profile = recording.stop()
    assert len(profile.time_ns) >= 100
    unnamed = [frame.title for node in profile.stack for frame in profile.path(int(node)) if "freed" in frame.title]
    assert unnamed == []
