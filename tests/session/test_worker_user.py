"""Tests of the user id of a confined worker, which no unprivileged process has, so that none may kill or trace it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.collector_control import Stride
from pyprof.collectors.linux import process_sandbox, procfs
from pyprof.collectors.linux.process_sandbox import NOBODY, UNUSED_USERS
from pyprof.collectors.targets.process_selection import select_processes
from pyprof.options import RecordOptions, TargetOptions
from pyprof.session import recording_factory
from pyprof.session.worker.worker_process import Start, Worker, forked, spawned
from tests.cli.support import BUSY, python
from tests.session.test_worker import until

pytestmark = [pytest.mark.live, pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")]


@contextlib.contextmanager
def recorded(target: subprocess.Popen[str], start: Start = forked) -> Iterator[Worker]:
    """Yield the worker of a running recording."""
    options = RecordOptions(rate=100, collector="ptrace", sandbox=True)
    with recording_factory.of_processes(TargetOptions(pids=(target.pid,)), options, start) as recording:
        recording.start()
        yield recording._sampling._link.worker


def ids(pid: int | str, kind: str) -> list[int]:
    """Return the real, effective, saved and file system ids of a process.

    Args:
        pid: Process id, or "self".
        kind: "Uid" or "Gid".
    """
    return list(map(int, procfs.parse_status(Path(f"/proc/{pid}/status").read_bytes())[kind].split()))


def run_as_nobody(code: str, pid: int) -> str:
    """Run Python code as an unprivileged user with the pid as its argument, and return its output."""
    command = [os.path.realpath("/usr/bin/python3"), "-c", code, str(pid)]
    done = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


KILL = """
import os, sys
for number in (0, 15, 9):
    try:
        os.kill(int(sys.argv[1]), number)
        print("sent")
    except PermissionError:
        print("refused")
"""
ATTACH = """
import ctypes, sys
seize = 0x4206
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(seize, int(sys.argv[1]), None, None), ctypes.get_errno())
"""


@pytest.mark.parametrize("start", [forked, spawned])
def test_confined_worker_has_a_user_that_no_other_process_has(start: Start) -> None:
    with python(BUSY) as target, recorded(target, start) as worker:
        user, *others = ids(worker.pid, "Uid")
        assert user in UNUSED_USERS
        assert others == [user] * 3
        assert ids(worker.pid, "Gid") == [user] * 4
        for other in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process has ended
                assert user not in ids(other.name, "Uid") or int(other.name) == worker.pid


def test_user_nobody_may_neither_signal_nor_trace_a_confined_worker() -> None:
    with python(BUSY) as target, recorded(target) as worker:
        assert run_as_nobody(KILL, worker.pid).split() == ["refused"] * 3
        assert run_as_nobody(ATTACH, worker.pid) == "-1 1"  # errno 1 is EPERM
        assert worker._child.poll() is None
    with subprocess.Popen(["sleep", "60"], user=NOBODY) as victim:  # shows that the attempts work in principle
        assert run_as_nobody(KILL, victim.pid).split() == ["sent"] * 3


def test_two_confined_workers_at_once_have_different_users() -> None:
    with python(BUSY) as one, python(BUSY) as other, recorded(one) as first, recorded(other) as second:
        assert ids(first.pid, "Uid")[0] != ids(second.pid, "Uid")[0]


def test_confined_worker_records_beside_whose_names_everything_else_comes_first() -> None:
    """Start the agent's worker, which requests a lower priority and may not if it is confined."""
    options = RecordOptions(rate=100, collector="ptrace", sandbox=True)
    with python(BUSY) as target:
        selection = select_processes(TargetOptions(pids=(target.pid,)))
        with recording_factory.of_selection(selection, options, "agent", 1.0, Stride()) as recording:
            recording.start()
            until(lambda: recording.samples > 5 or recording.failure)
            assert recording.stop().summary.samples > 0


def test_user_of_a_running_process_or_of_a_database_or_reserved_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    used, reserved, free = candidates = [*UNUSED_USERS][:3]
    monkeypatch.setattr(process_sandbox, "_candidates", lambda: [0, *candidates])
    with subprocess.Popen(["sleep", "60"], user=used) as process, socket.socket(socket.AF_UNIX) as lock:
        lock.bind(f"\0pyprof-user-{reserved}")
        assert new_user() == free
        process.kill()


def test_where_no_user_is_unused_the_worker_is_nobody_and_the_profile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_sandbox, "_candidates", list)
    options = RecordOptions(rate=100, collector="ptrace", sandbox=True)
    with (
        python(BUSY) as target,
        recording_factory.of_processes(TargetOptions(pids=(target.pid,)), options, forked) as recording,
    ):
        recording.start()
        assert ids(recording._sampling._link.worker.pid, "Uid") == [NOBODY] * 4
        assert recording.stop().summary.errors["worker_user_shared"] == 1


NEW_NAMESPACE = """
import ctypes, os
from pyprof.collectors.linux import process_sandbox
clone_newuser = 0x10000000
assert ctypes.CDLL(None).unshare(clone_newuser) == 0
print(flush=True)
input()
os.setresuid(0, 0, 0)
print(process_sandbox.become_unprivileged(), os.getresuid() == (65534, 65534, 65534))
"""


def test_user_namespace_with_few_users_gives_the_user_nobody() -> None:
    with python(NEW_NAMESPACE) as process:
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
        assert process.communicate("\n")[0].split() == [str(NOBODY), "True"]


def new_user() -> int | None:
    """Return the user id that a child takes."""
    taken, given = os.pipe()
    child = os.fork()
    if not child:
        os.write(given, str(process_sandbox.become_unprivileged()).encode())
        os._exit(0)
    os.close(given)
    with open(taken) as file:
        text = file.read()
    os.waitpid(child, 0)
    return int(text)
