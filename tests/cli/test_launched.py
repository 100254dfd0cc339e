"""Tests of commands that pyprof starts: the collector fits the running program and changes when it calls exec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.options import CollectOptions
from tests.cli.support import PYPROF, WITHOUT_BPF, pyprof, python
from tests.collapsed import stacks
from tests.support import missing, need

pytestmark = [pytest.mark.live, pytest.mark.system]

BUSY = "end = __import__('time').process_time() + {}\nwhile __import__('time').process_time() < end: sum(range(2000))"
BUSY_PERL = "while ((times)[0] < 1) { $x++ for 1..10000 }"


@pytest.fixture(autouse=True)
def allowed() -> None:
    try:
        event = choose_event(os.getpid(), 0, CollectOptions())
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")
    if event.user_only:
        missing("needs perf_events of time in the kernel")


@dataclass(frozen=True)
class Launched:
    """The result of recording a command.

    Attributes:
        stacks: (frames from root to leaf, number of samples).
        summary: The data that --summary writes.
    """

    stacks: list[tuple[list[str], int]]
    summary: dict[str, Any]

    @property
    def modules(self) -> set[str]:
        return {os.path.basename(module["path"]) for module in self.summary["modules"]}

    def count(self, *frames: str) -> int:
        return sum(n for stack, n in self.stacks if all(any(frame in each for each in stack) for frame in frames))

    def says(self, text: str) -> bool:
        return any(text in note["text"] for note in self.summary["notes"])


def record(folder: Path, *arguments: str, before: Sequence[str] = ()) -> Launched:
    output, summary = folder / "out.collapsed", folder / "summary.json"
    command = ("record", "-q", "-r", "300", "-o", str(output), "--summary", str(summary), *arguments)
    if before:
        done = subprocess.run([*before, *PYPROF, *command], capture_output=True, text=True, timeout=120, check=False)
    else:
        done = pyprof(*command, timeout=120)
    assert done.returncode == 0, done.stderr
    return Launched(stacks(output.read_text()), json.loads(summary.read_text()))


STRANGER = """
import os, time
end = time.time() + 60
print(flush=True)
while time.time() < end:
    if not os.fork():
        until = time.time() + 0.05
        while time.time() < until: sum(range(2000))
        os._exit(0)
    os.wait()
"""


def test_native_command_is_never_stopped_and_nothing_of_ours_is_in_its_profile(tmp_path: Path) -> None:
    need("perl")
    with python(STRANGER):
        found = record(tmp_path, "--", "perl", "-e", BUSY_PERL)
    assert found.count("perl") > 10
    assert found.summary["threads"] == 1
    assert found.summary["stops"]["count"] == 0
    assert found.says("The target was never stopped")
    assert not found.says("CPython")
    assert not any("python" in module for module in found.modules), found.modules


def test_shell_that_executes_python_has_its_python_frames(tmp_path: Path) -> None:
    code = BUSY.format(0.6)
    found = record(tmp_path, "--mode", "wall", "--", "sh", "-c", 'exec "$0" -c "$1"', sys.executable, code)
    assert found.count("<module> (<string>)") > 20
    assert found.summary["stops"]["count"] == 0
    assert found.says("(BPF)")
    assert not found.says("perf_events")
    assert not found.says("CPython")


@pytest.mark.parametrize("script", [False, True])
def test_python_that_is_started_has_its_python_frames_from_the_start(script: bool, tmp_path: Path) -> None:
    program = tmp_path / "script"
    program.write_text(f"#!{sys.executable}\n{BUSY.format(0.6)}\n")
    program.chmod(0o755)
    found = record(tmp_path, "--", *((str(program),) if script else (sys.executable, str(program))))
    assert found.count("<module> (script)") > 20
    assert found.summary["stops"]["count"] == 0
    assert found.says("(BPF)")
    assert not found.says("perf_events")


def test_python_that_executes_another_program_is_stopped_no_more(tmp_path: Path) -> None:
    need("perl")
    need("setpriv")
    perl = BUSY_PERL.replace("< 1", "< 2.5")  # with the time of Python, which is of the same process
    code = f"import os\n{BUSY.format(1.5)}\nos.execvp('perl', ['perl', '-e', {perl!r}])"
    found = record(tmp_path, "--", sys.executable, "-c", code, before=WITHOUT_BPF)
    interpreted, native = found.count("<module> (<string>)"), found.count("perl_run")
    assert interpreted > 5
    assert native > 20
    assert 5 < found.summary["stops"]["count"] < interpreted + native // 2 + 5
    assert found.says("1 process: CPython")


@pytest.mark.parametrize("first", ["sh", "python"])
def test_children_of_either_kind_are_sampled_without_stops(first: str, tmp_path: Path) -> None:
    need("perl")
    child = f"import subprocess\n{BUSY.format(0.6)}\nsubprocess.run(['perl', '-e', {BUSY_PERL!r}])"
    command = (sys.executable, "-c", child)
    found = record(tmp_path, "--", *(command if first == "python" else ("sh", "-c", '"$0" "$@"; true', *command)))
    interpreted, native = found.count("<module> (<string>)"), found.count("perl_run")
    assert interpreted > 5
    assert native > 20
    assert found.summary["stops"]["count"] == 0
    assert found.says("(BPF)")


def test_build_is_recorded_with_the_compilers_that_it_starts(tmp_path: Path) -> None:
    need("make")
    need("gcc")
    (tmp_path / "Makefile").write_text("all: a.o b.o c.o\n%.o: %.c\n\tgcc -O2 -c $< -o $@\n")
    for name in "abc":
        body = "\n".join(f"double f{i}(double *p) {{ return p[{i}] * p[0] / {i + 1}; }}" for i in range(500))
        (tmp_path / f"{name}.c").write_text(f"#include <math.h>\n{body}\n")
    found = record(tmp_path, "-t", "--", "make", "-j2", "-C", str(tmp_path))
    compilers = [n for stack, n in found.stacks if stack[0].startswith("cc1")]
    assert sum(compilers) > 20
    assert found.summary["stops"]["count"] == 0
    assert not any("python" in module for module in found.modules), found.modules


def test_only_the_first_process_is_recorded_where_no_children_are_wanted(tmp_path: Path) -> None:
    need("perl")
    command = ("sh", "-c", 'perl -e "$0"; true', BUSY_PERL)
    assert record(tmp_path, *("--", *command)).count("perl_run") > 20
    assert record(tmp_path, *("--no-subprocesses", "--", *command)).count("perl_run") == 0


def test_recording_of_a_command_ends_with_it_though_a_child_runs_on(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import subprocess, sys
        null = subprocess.DEVNULL
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=null, stderr=null)
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    """)
    found = record(tmp_path, "--", sys.executable, "-c", code)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert procfs.read_state(pid, pid) == "sleeping"
        assert found.summary["samples"] > 0
    finally:
        os.kill(pid, 9)


def test_command_that_slept_is_told_of_sleeping_threads(tmp_path: Path) -> None:
    """Record a sleeping command that is alive at the end. Its start takes less than a sampling period."""
    done = pyprof("record", "-r", "1", "-d", "0.3", "-o", str(tmp_path / "a.html"), "--", "sleep", "0.6")
    assert done.returncode == 0
    said = " ".join(done.stderr.split())
    assert "nothing was sampled: the command ended before it could be sampled, or slept: -i samples" in said
    assert max(map(len, done.stderr.splitlines()[1:-2])) <= 80
