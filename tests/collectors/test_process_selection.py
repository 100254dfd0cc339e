"""Tests of selecting several processes and recording them together."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.collectors.targets.process_selection import select_processes
from pyprof.errors import NoSuchProcess, UsageError
from pyprof.options import TargetOptions
from tests import warm
from tests.cli.support import PYPROF
from tests.collapsed import sampled
from tests.support import PROGRAMS, build, missing, need

pytestmark = [pytest.mark.live, pytest.mark.system]

NAME = f"chosen-{os.getpid()}"
"""Name of the program that tests select. Other runs of these tests, in other processes, have other names."""
LONGER_AND_LONGER = ("1.5", "4", "12", "40")
"""Durations in seconds to try until a recording has samples, because other load uses an unknown part of two
processors.
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROGRAMS / "c_spin.c", tmp_path_factory.mktemp("selection") / NAME, "-pthread")


@contextlib.contextmanager
def spinning(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that spins until its standard input ends."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def by_name(text: str) -> TargetOptions:
    return TargetOptions(name=re.compile(text))


def test_processes_are_found_by_their_name_or_that_of_their_program(program: Path, tmp_path: Path) -> None:
    other = tmp_path / f"with-a-name-of-more-than-fifteen-letters-{os.getpid()}"
    shutil.copy(program, other)
    with spinning(program) as one, spinning(program) as two, spinning(other) as three:
        assert set(select_processes(by_name(f"^{NAME}$")).pids) == {one.pid, two.pid}
        assert select_processes(by_name(f"fifteen-letters-{os.getpid()}$")).pids == (three.pid,)


def test_all_criteria_must_be_met_and_pyprof_never_fits(program: Path) -> None:
    with spinning(program) as one:
        own = str(os.getuid())
        found = select_processes(TargetOptions(name=re.compile(NAME), user=own, cgroup="/"))
        assert found.pids == (one.pid,)
        assert os.getpid() not in select_processes(TargetOptions(everything=True)).pids
        with pytest.raises(NoSuchProcess):
            select_processes(TargetOptions(name=re.compile(NAME), user=str(os.getuid() + 12345)))


def test_what_is_not_there_is_said_before_anything_is_recorded() -> None:
    with pytest.raises(UsageError, match="no user nobody-of-this-name"):
        select_processes(TargetOptions(user="nobody-of-this-name"))
    with pytest.raises(UsageError, match="no control group /no/such/group"):
        select_processes(TargetOptions(cgroup="/sys/fs/cgroup/no/such/group"))
    with pytest.raises(NoSuchProcess):
        select_processes(by_name("^no process has this name$"))
    with pytest.raises(NoSuchProcess):
        select_processes(TargetOptions(pids=(2**22 + 3,)))


def test_a_named_process_that_is_gone_is_left_out_and_said(program: Path) -> None:
    with spinning(program) as one:
        selection = select_processes(TargetOptions(pids=(2**22 + 3, one.pid, one.pid)))
    assert selection.pids == (one.pid,)
    assert len(selection.refused) == 1
    assert not selection.lasting


def test_processes_that_come_later_are_found_once(program: Path) -> None:
    with spinning(program) as one:
        selection = select_processes(by_name(f"^{NAME}$"))
        known = set(selection.pids)
        assert list(selection.find_new(known)) == []
        with spinning(program) as two:
            time.sleep(0.6)  # the search for processes has a limited budget
            deadline = time.monotonic() + 20
            found: list[int] = []
            while not found and time.monotonic() < deadline:
                found = list(selection.find_new(known))
            assert found == [two.pid]
    assert known == {one.pid}


def recorded(folder: Path, *options: str) -> tuple[dict[str, int], dict[str, object]]:
    """Record and return the number of samples by root frame, and the summary."""
    out, summary = folder / "out.collapsed", folder / "summary.json"
    to = ("-o", str(out), "--summary", str(summary), "-q")
    done = warm.run("record", "-r", "400", *options, *to, timeout=120)
    if "are not allowed" in done.stderr:
        missing(f"needs perf_events of the whole machine: {done.stderr}")
    found = sampled(out.read_text())
    assert done.returncode == (0 if found else 1), done.stderr
    roots: dict[str, int] = {}
    for frames, count in found:
        roots[frames[0]] = roots.get(frames[0], 0) + count
    return roots, json.loads(summary.read_text())


def until_sampled(folder: Path, roots: int, *options: str) -> dict[str, int]:
    """Make longer and longer recordings until this many root frames have more than ten samples each."""
    for seconds in LONGER_AND_LONGER:
        found, _ = recorded(folder, *options, "-d", seconds)
        if sum(count > 10 for count in found.values()) >= roots:
            break
    return found


@pytest.mark.parametrize("collector", ["ptrace", "perf"])
def test_several_processes_make_one_profile_with_a_root_each(program: Path, collector: str, tmp_path: Path) -> None:
    with spinning(program) as one, spinning(program) as two:
        often = ("-r", "499", "--collector", collector)  # other load may leave a tenth of a processor
        both = ("-p", str(one.pid), "-p", str(two.pid))
        named = until_sampled(tmp_path, 2, "--processes", *often, *both)
        fitting = until_sampled(tmp_path, 2, "--processes", *often, "--name", f"^{NAME}$")
        plain = until_sampled(tmp_path, 1, *often, *both)
    roots = {f"{NAME} (pid {process.pid})" for process in (one, two)}
    assert set(named) == set(fitting) == roots
    assert min(named.values()) > 10
    assert plain
    assert not [root for root in plain if "(pid" in root], "roots on request"


@pytest.mark.parametrize("collector", ["ptrace", "perf"])
def test_the_whole_machine_holds_a_process_that_began_while_it_was_recorded(
    program: Path, collector: str, tmp_path: Path
) -> None:
    """Record all processes of the machine, and read all their tables, until both programs have samples."""
    late = ["bash", "-c", f"echo ready; sleep 0.4; exec {program} 1"]
    for seconds in LONGER_AND_LONGER:
        with spinning(program) as one, spinning(*late) as two:
            how = ("--collector", collector, "-a", "-r", "200", "-d", seconds)
            roots, summary = recorded(tmp_path, "--processes", *how)
        seen = {process for process in (one, two) for root in roots if f"(pid {process.pid})" in root}
        if len(seen) == 2:
            break
    assert len(seen) == 2
    assert summary["threads"] >= 2  # type: ignore[operator]


@pytest.mark.parametrize(
    "options",
    [
        ("--collector", "ptrace", "--mode", "wall", "--name", NAME),
        ("--collector", "perf", "--mode", "wall", "--name", NAME),
        ("--collector", "perf", "-r", "499", "-a"),
    ],
    ids=["name by stops", "name by perf", "whole machine"],
)
def test_processes_of_the_profiler_are_never_recorded(options: tuple[str, ...], program: Path, tmp_path: Path) -> None:
    """Select processes by a name that is also in the profiler's command lines."""
    out = tmp_path / "out.collapsed"
    with spinning(program) as one, spinning(program):
        command = [*PYPROF, "record", "--processes", *options, "-d", "1.5", "-o", str(out)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as profiler:
            started: set[str] = set()
            while not started and profiler.poll() is None:
                started = set(Path(f"/proc/{profiler.pid}/task/{profiler.pid}/children").read_text().split())
                time.sleep(0.02)
            said = profiler.communicate(timeout=120)[1]
    if "are not allowed" in said:
        missing(f"needs perf_events of the whole machine: {said}")
    roots = {frames[0] for frames, _ in sampled(out.read_text())}
    assert started
    assert f"{NAME} (pid {one.pid})" in roots
    assert not [root for root in roots if any(f"(pid {pid})" in root for pid in {str(profiler.pid), *started})]


@pytest.mark.parametrize("collector", ["perf", "bpf"])
def test_process_that_may_not_be_read_has_no_row_in_a_recording_of_the_machine(
    program: Path, collector: str, tmp_path: Path
) -> None:
    """Record the machine with fewer capabilities than one of two programs has."""
    need("setpriv")
    out = tmp_path / "out.collapsed"
    lower = ("setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace")
    with spinning(program) as higher, spinning(*lower, program) as equal:
        command = [*lower, *PYPROF, "record", "--processes", "-a", "--collector", collector, "-d", "2", "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 2:
        missing(f"needs {collector} for the whole machine: {done.stderr}")
    assert "Left out" in done.stderr
    roots = " ".join(line.split(";", 1)[0] for line in out.read_text().splitlines())
    assert f"(pid {equal.pid})" in roots
    assert f"(pid {higher.pid})" not in roots, "its time is neither sampled nor missing"


@pytest.mark.parametrize("collector", ["ptrace", "perf"])
def test_threads_are_chosen_by_their_names(collector: str, tmp_path: Path) -> None:
    code = (
        "import sys, threading\n"
        "def spin(name):\n"
        "    open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write(name)\n"
        "    barrier.wait()\n"
        "    while True: sum(range(1000))\n"
        "barrier = threading.Barrier(3)\n"
        "[threading.Thread(target=spin, name=n, args=(n,), daemon=True).start() for n in ('chosen', 'other')]\n"
        "barrier.wait()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    with spinning("python3", "-c", code) as process:
        who = ("-p", str(process.pid), "--thread", "chos", "-t")
        roots = until_sampled(tmp_path, 1, "--collector", collector, *who)
    assert len(roots) == 1
    assert next(iter(roots)).startswith("chosen (tid ")


def test_script_is_found_by_its_name_in_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "chosen_script.py"
    script.write_text("import time; print(flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = select_processes(by_name(r"chosen_script\.py$")).pids
        process.kill()
    assert found == (process.pid,)


def test_those_who_called_us_are_not_found_by_the_pattern_in_their_command_line() -> None:
    code = (
        "import re, subprocess, sys\n"
        "from pyprof.collectors.targets.process_selection import select_processes\n"
        "from pyprof.options import TargetOptions\n"
        "from pyprof.errors import NoSuchProcess\n"
        "try: print(select_processes(TargetOptions(name=re.compile('never-of-[t]his-name'))).pids)\n"
        "except NoSuchProcess: print('none')"
    )
    shell = ("sh", "-c", '"$0" -c "$1"; : never-of-this-name', sys.executable, code)
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == "none\n"
