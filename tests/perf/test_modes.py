"""Tests of on-CPU time, off-CPU time and both, with and without stops."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.model.arch import AARCH64, I386, X86_64, Arch
from pyprof.model.marker_frames import Blocked
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.kernel_symbols import HIDDEN, KernelNames
from tests import warm
from tests.bpf.test_pressure import until_ran
from tests.cli.support import PYPROF, WITHOUT_BPF
from tests.live.support.recording import Recording, record, running
from tests.support import missing, need

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAM = """
import os, threading, time
def busy():
    while True: sum(range(20000))
def waiting():
    os.read(os.pipe()[0], 1)
def both():
    while True:
        until = time.time() + 0.05
        while time.time() < until: pass
        time.sleep(0.05)
for f in (busy, waiting, both): threading.Thread(target=f, name=f.__name__, daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def program() -> Iterator[int]:
    with subprocess.Popen(["python3", "-c", PROGRAM], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.2)
        yield process.pid
        process.kill()


@pytest.fixture(autouse=True)
def allowed() -> None:
    try:
        choose_event(os.getpid(), 0, CollectOptions(kernel=True))
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")


def recorded(
    pid: int, folder: Path, collector: str, mode: str, *options: str, until: Callable[[Recording], bool]
) -> Recording:
    """Record for a second, or for longer on a busy machine, until the condition holds."""
    options = ("--collector", collector, "--mode", mode, "-t", *options)
    recording = record(pid, folder, *options, seconds=1, rate=199, until=until)
    assert until(recording), recording.stacks
    return recording


def leaves(recording: Recording, thread: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for stack, count in recording.stacks.items():
        if stack[0].startswith(f"{thread} (tid"):
            found[stack[-1]] = found.get(stack[-1], 0) + count
    return found


def has_naps(recording: Recording) -> bool:
    return leaves(recording, "both").get("[sleeping: clock_nanosleep]", 0) > 10


def running_samples(recording: Recording, thread: str) -> int:
    return sum(count for leaf, count in leaves(recording, thread).items() if not leaf.startswith("["))


@pytest.mark.parametrize("collector", ["ptrace", "perf"])
def test_time_asleep_is_told_by_the_call_in_which_a_thread_sleeps(program: int, collector: str, tmp_path: Path) -> None:
    recording = recorded(program, tmp_path, collector, "offcpu", until=has_naps)
    assert set(leaves(recording, "waiting")) == {"[sleeping: read]"}
    asleep = re.compile(r"\[(sleeping|woken|blocked|uninterruptible sleep)(: \w+)?\]")
    assert all(asleep.fullmatch(stack[-1]) for stack in recording.stacks)
    assert recording.summary["stops"]["count"] == 0


@pytest.mark.parametrize("collector", ["ptrace", "perf"])
def test_wall_time_holds_what_ran_and_what_slept(program: int, collector: str, tmp_path: Path) -> None:
    def has_all(found: Recording) -> bool:
        return has_naps(found) and running_samples(found, "both") > 5 and running_samples(found, "busy") > 20

    recording = recorded(program, tmp_path, collector, "wall", until=has_all)
    assert set(leaves(recording, "waiting")) == {"[sleeping: read]"}
    assert recording.whole > 0.99
    assert (recording.summary["stops"]["count"] == 0) == (collector == "perf")


def in_system_calls(recording: Recording) -> list[tuple[str, ...]]:
    return [stack for stack in recording.stacks if any("do_syscall_64" in name for name in stack)]


def callers_of_system_calls(recording: Recording) -> list[str]:
    stacks = in_system_calls(recording)
    return [stack[next(i for i, name in enumerate(stack) if "SYSCALL_64" in name) - 1] for stack in stacks]


def test_frames_of_the_kernel_stand_inside_those_of_its_caller(tmp_path: Path) -> None:
    def has_calls(found: Recording) -> bool:
        return any("stat" in name for name in callers_of_system_calls(found))

    code = "import os\nprint('ready', flush=True)\nwhile True: os.stat('/')"
    with subprocess.Popen(["python3", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            recording = recorded(process.pid, tmp_path, "perf", "cpu", "-k", until=has_calls)
        finally:
            process.kill()
    assert recording.summary["trust"]["kernel"] > 0


@pytest.mark.parametrize("collector", ["bpf", "auto"])
def test_python_native_and_kernel_functions_stand_in_one_stack(collector: str, tmp_path: Path) -> None:
    code = "import os\ndef ask(): os.stat('/')\nprint('ready', flush=True)\nwhile True: ask()"
    with running(sys.executable, "-c", code) as process:
        recording = recorded(process.pid, tmp_path, collector, "cpu", "-k", until=lambda found: found.samples > 50)
    inside = in_system_calls(recording)
    for stack in inside:
        call = next(at for at, name in enumerate(stack) if "SYSCALL_64" in name)
        assert "ask (<string>)" in stack[:call], stack
    assert sum(recording.stacks[stack] for stack in inside) > 0.2 * recording.samples
    assert recording.summary["stops"]["count"] == 0


def test_a_wait_has_the_kernels_frames_up_to_the_scheduler(program: int, tmp_path: Path) -> None:
    def naps(found: Recording) -> set[tuple[str, ...]]:
        of_both = {stack for stack in found.stacks if stack[0].startswith("both (tid")}
        return {stack for stack in of_both if stack[-1] == "[sleeping: clock_nanosleep]"}

    def scheduled(found: Recording) -> set[tuple[str, ...]]:
        return {stack for stack in naps(found) if "schedule" in stack[-2]}

    def has_scheduled(found: Recording) -> bool:
        return sum(found.stacks[stack] for stack in scheduled(found)) > 10

    recording = recorded(program, tmp_path, "bpf", "offcpu", "-k", until=has_scheduled)
    seen = scheduled(recording)
    for stack in naps(recording) - seen:  # asleep since before the recording, so read without a stop
        assert "nanosleep" in stack[-2], stack
        assert recording.stacks[stack] < 20
    for stack in seen:
        assert any("nanosleep" in name for name in stack[-9:-2]), stack
        assert not any("bpf" in name for name in stack), stack


def test_kernel_frames_by_stops_are_refused_in_one_sentence() -> None:
    done = warm.run("record", "-k", "--collector", "ptrace", "-p", "1")
    assert done.returncode == 2
    assert "samples by stops have no kernel frames" in done.stderr


@pytest.mark.parametrize(
    ("arch", "state", "call", "title"),
    [
        (X86_64, "S", 202, "[sleeping: futex]"),
        (X86_64, "D", 0, "[uninterruptible sleep: read]"),
        (X86_64, "T", 441, "[stopped: epoll_pwait2]"),
        (X86_64, "S", -1, "[sleeping]"),
        (X86_64, "S", 9999, "[sleeping: system call 9999]"),
        (I386, "S", 240, "[sleeping: futex]"),
        (AARCH64, "S", 98, "[sleeping: futex]"),
    ],
)
def test_a_wait_has_a_title(arch: Arch, state: str, call: int, title: str) -> None:
    assert KernelNames(Diagnostics()).frame_title(Blocked(arch.name, state, call)) == title


def test_hidden_addresses_of_the_kernel_are_said_with_the_command(tmp_path: Path) -> None:
    hidden = tmp_path / "kallsyms"
    hidden.write_text("0000000000000000 T _text\nrubbish\nzz T x\n")
    diagnostics = Diagnostics()
    names = KernelNames(diagnostics, str(hidden))
    assert names.frame_title(0xFFFFFFFF81000010) == "[kernel]+0xffffffff81000010"
    assert diagnostics.counts[HIDDEN] == 1
    shown = tmp_path / "shown"
    shown.write_text("ffffffff81000000 T _text\nffffffff81000020 t work\t[module]\nffffffff81000030 D data\n")
    names = KernelNames(Diagnostics(), str(shown))
    assert names.frame_title(0xFFFFFFFF81000010) == "_text"
    assert names.frame_title(0xFFFFFFFF81000038) == "work [module]"


def test_wall_mode_counts_time_once_when_an_interpreter_begins(tmp_path: Path) -> None:
    need("setpriv")
    summary = tmp_path / "summary.json"
    becomes_python = 'echo ready; read line; exec "$0" -c "while True: pass"'
    with running("sh", "-c", becomes_python, sys.executable, stdin=subprocess.PIPE) as program:
        to = ("-f", "collapsed", "-o", str(tmp_path / "out"), "--summary", str(summary))
        command = [*WITHOUT_BPF, *PYPROF, "record", "-p", str(program.pid), "--mode", "wall", *to]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as recorder:
            assert recorder.stderr
            recorder.stderr.readline()  # the recording has begun
            time.sleep(0.5)
            assert program.stdin
            program.stdin.write("\n")
            program.stdin.flush()
            until_ran(program.pid, 1.5)
            recorder.terminate()
            recorder.communicate()
    found = json.loads(summary.read_text())
    assert any(note["text"].startswith("Until an interpreter was found") for note in found["notes"]), found["notes"]
    assert "waits_clipped" not in {counter["name"] for counter in found["counters"]}
    assert found["shown"]["total"] > 0.8 * 1e9 * found["duration_s"]
