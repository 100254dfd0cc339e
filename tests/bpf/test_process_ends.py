"""Tests of the kernel's reports of ended processes: each has its final processor time, also if no parent waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pyprof.collectors.bpf import process_ends
from pyprof.collectors.bpf.bpf_object import ProgramRefused
from pyprof.collectors.bpf.process_ends import ProcessEnd, ProcessEnds
from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.process_cpu_times import TICK_NS, read_times
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]

ANCESTOR = """
import os, signal, sys, threading, time
if sys.argv[1] == "ignore": signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def spin():
    until = time.thread_time_ns() + 10_000_000
    while time.thread_time_ns() < until: pass
for line in sys.stdin:
    if (child := os.fork()) == 0:
        with open("/proc/self/comm", "w") as file: file.write("shortlived")
        if sys.argv[1] == "threads":
            threads = [threading.Thread(target=spin) for _ in range(3)]
            for each in threads: each.start()
            for each in threads: each.join()
        spin()
        os.setuid(65534)
        os.write(1, b"%d %d\\n" % (os.getpid(), time.process_time_ns()))
        os._exit(0)
    if sys.argv[1] != "ignore":
        _, _, used = os.wait4(child, 0)
        os.write(1, b"%d\\n" % round(1e9 * (used.ru_utime + used.ru_stime)))
"""


def load_program() -> ProcessEnds:
    """Return the loaded program that reports ended processes, or skip the test where the kernel refuses it."""
    try:
        return ProcessEnds()
    except ProgramRefused as error:
        missing(f"needs BPF: {error.message} {error.hint}")
        raise


@pytest.fixture
def ends() -> Iterator[ProcessEnds]:
    found = load_program()
    yield found
    found.close()


def wait_for(ends: ProcessEnds, pid: int) -> ProcessEnd:
    """Return the report of an ended process."""
    deadline = time.monotonic() + 60
    while True:
        for end in ends.read_ends():
            if end.pid == pid:
                return end
        assert time.monotonic() < deadline, (pid, ends.lost, read_state(pid))
        time.sleep(0.01)


def read_state(pid: int) -> str:
    """Return what the kernel says of a process that should have ended: perhaps another process traces it."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            return "".join(line for line in status if line.startswith(("State", "PPid", "TracerPid")))
    except FileNotFoundError:
        return "it has ended"


@pytest.mark.parametrize("kind", ["waits", "threads", "ignore"])
def test_ended_process_is_reported_with_all_of_its_time(kind: str, ends: ProcessEnds) -> None:
    """The bounds are the process's own clock before its end, and what wait4(2) accounts, which lags by a tick."""
    command = [sys.executable, "-c", ANCESTOR, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ancestor:
        assert ancestor.stdin
        assert ancestor.stdout
        for _ in range(5):
            print(file=ancestor.stdin, flush=True)
            pid, own_ns = map(int, ancestor.stdout.readline().split())
            most_ns = own_ns if kind == "ignore" else int(ancestor.stdout.readline())
            end = wait_for(ends, pid)
            assert own_ns <= end.run_ns < most_ns + TICK_NS
            assert own_ns > (40_000_000 if kind == "threads" else 10_000_000)
            assert (end.name, end.uid, end.parent) == ("shortlived", 65534, ancestor.pid)
            assert end.parent_name == procfs.read_name(ancestor.pid)
            assert end.start >= (procfs.read_start_ticks(ancestor.pid) or 0) > 0
            assert end.shares_cgroup
            assert end.grandparent == os.getpid()
            assert end.eldest in ancestors(os.getpid())
            assert end.waited_ns == 0
            assert end.at_ns <= time.monotonic_ns()
        ancestor.stdin.close()
    found = wait_for(ends, ancestor.pid)
    assert found.parent == os.getpid()
    assert (found.waited_ns >= 5 * 10_000_000) is (kind != "ignore")


def ancestors(pid: int) -> list[int]:
    """Return a process, its parent, and so on, at most as many as the program reads."""
    found = [pid]
    while len(found) < 12 and (times := read_times(found[-1])) is not None and times.parent:
        found.append(times.parent)
    return found


def test_process_whose_parents_end_with_it_is_reported_with_an_ancestor_that_runs(ends: ProcessEnds) -> None:
    """The shell and its inner shell have ended when the report of the innermost process is read."""
    script = "(echo $$; /bin/sh -c 'cat /proc/self/stat; :'; :) | cat; :"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout
        shell.stdout.readline()
        words = shell.stdout.readline().split()
    pid, parent = int(words[0]), int(words[3])
    end = wait_for(ends, pid)
    assert (end.name, end.parent, end.parent_name) == ("cat", parent, "sh")
    assert not any(os.path.exists(f"/proc/{each}") for each in (end.pid, end.parent, end.grandparent))
    assert end.eldest in ancestors(os.getpid())


def test_threads_are_not_reported(ends: ProcessEnds) -> None:
    program = "import threading\nfor _ in range(9): (each := threading.Thread(target=int)).start(); each.join()"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        pass
    wait_for(ends, process.pid)
    assert [end for end in ends.read_ends() if end.pid == process.pid] == []


def test_reports_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_ends, "RING_SIZE", 4096)
    ends = load_program()
    try:
        pids = set()
        for _ in range(60):
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)
            pids.add(child)
        deadline, found = time.monotonic() + 60, 0
        while not ends.lost:
            found += sum(end.pid in pids for end in ends.read_ends())
            assert time.monotonic() < deadline
        assert found < 60
    finally:
        ends.close()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
