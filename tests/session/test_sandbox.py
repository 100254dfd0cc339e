"""Tests of what a compromised worker could do: only compute, and ask the file broker for permitted files."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyprof.collectors.linux import libc, process_sandbox, procfs
from pyprof.collectors.linux.process_sandbox import NOBODY
from pyprof.objfile.untrusted_file_access import Opener
from pyprof.options import is_confined
from pyprof.session.worker import file_broker
from pyprof.session.worker.file_broker import AnyObjectFile, GuardedOpener, KnownFiles, KnownFolder, KnownProcess
from pyprof.session.worker.message_channel import Channel
from pyprof.session.worker.sandbox import Sandbox

ROOT = os.geteuid() == 0
SECRET = "/etc/shadow"


def attempts(victim: int) -> dict[str, Callable[[], object]]:
    """Return actions that all succeed for root.

    Args:
        victim: Pid of a process of another user.
    """
    return {
        "open": lambda: os.close(os.open(SECRET, os.O_RDONLY)),
        "create": lambda: os.close(os.open(".", os.O_TMPFILE | os.O_RDWR)),
        "rename": lambda: os.rename("/nowhere/a", "/nowhere/b"),
        "connect": lambda: socket.socket().close(),
        "exec": lambda: os.execv("/nowhere/program", ["program"]),
        "fork": lambda: os.fork() or os._exit(0),
        "kill": lambda: os.kill(victim, signal.SIGCONT),
        "trace": lambda: _called(libc.seize(victim)),
        "memory": lambda: _called(libc.PtraceCalls().read_memory(victim, 0x1000, 8, _room())),
        "code": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC).close(),
        "perf": lambda: _called(libc.perf_event_open(bytes(128), victim, -1)),
        "bpf": lambda: _called(libc.bpf(0, bytearray(128))),
        "root": lambda: os.setresuid(0, 0, 0),
        "mount": lambda: _called(-ctypes.get_errno() if ctypes.CDLL(None, use_errno=True).chroot(b"/") else 0),
    }


_held = ctypes.create_string_buffer(8)


def _room() -> int:
    return ctypes.addressof(_held)


def _called(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def outcomes(victim: int, confined: bool) -> dict[str, int]:
    """Run the actions in a child that starts as workers do.

    Return the error number of each action, 0 for success, and values of its /proc status such as "seccomp".
    """
    taken, given = os.pipe()
    child = os.fork()
    if not child:
        try:
            _, notices = Channel.pair()
            tries = attempts(victim)
            box = Sandbox(notices)
            found = {"confined": int(box.confine() == ()) if confined else 0}
            for name, attempt in tries.items():
                try:
                    attempt()
                    found[name] = 0
                except OSError as error:
                    found[name] = error.errno or -1
            said = procfs.parse_status(box.keeper.read_status(os.getpid(), "status"))
            found["uid"], found["filter"] = int(said["Uid"].split()[1]), int(said["Seccomp"])
            found["rights"] = int(said["CapEff"], 16)
            os.write(given, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(given)
    with open(taken, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def victim() -> Iterator[int]:
    """Yield the pid of a process of an unprivileged user."""
    become: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if ROOT else {}
    code = "import sys; print(flush=True); sys.stdin.read()"
    interpreter = os.path.realpath("/usr/bin/python3") if ROOT else sys.executable
    pipe = subprocess.PIPE
    with subprocess.Popen([interpreter, "-c", code], stdin=pipe, stdout=pipe, **become) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.live
def test_confined_worker_is_refused_whatever_needs_a_right(victim: int) -> None:
    free, confined = outcomes(victim, confined=False), outcomes(victim, confined=True)
    assert confined["confined"] == 1
    assert {name: confined[name] for name in attempts(victim)} == dict.fromkeys(attempts(victim), errno.EPERM)
    assert confined["filter"] == 2
    assert confined["rights"] == 0
    if ROOT:
        assert confined["uid"] in process_sandbox.UNUSED_USERS
        assert [name for name in attempts(victim) if free[name] == errno.EPERM] == []
    assert free["filter"] == 0


@pytest.mark.live
@pytest.mark.skipif(not ROOT, reason="only root has capabilities here")
def test_worker_that_keeps_its_user_has_no_capability_either(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a user with capabilities, for example through a Python executable with CAP_SYS_PTRACE."""
    monkeypatch.setattr(process_sandbox, "become_unprivileged", lambda: None)
    confined = outcomes(victim, confined=True)
    assert (confined["uid"], confined["rights"]) == (0, 0)


@pytest.fixture
def opener(victim: int) -> GuardedOpener:
    made = GuardedOpener(os.getpid())
    made.notify(KnownProcess(victim, f"/proc/{victim}/root"))
    return made


@pytest.mark.skipif(not ROOT, reason="only root has rights that everybody lacks")
@pytest.mark.live
def test_keeper_forgets_processes_that_have_ended_once_there_are_many(
    victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notify the file broker of many ended processes, as an agent does. Live ones stay known, however old."""
    monkeypatch.setattr(file_broker, "MAX_PROCESSES", 8)
    opener = GuardedOpener(os.getpid())
    ended = [f"/proc/{pid}/root" for pid in range(1 << 23, (1 << 23) + 100)]  # above the kernel's maximum pid
    for root in ("/", *ended):
        opener.notify(KnownProcess(victim if root == "/" else int(root.split("/")[2]), root))
        os.close(opener.open_memory(victim, "maps"))
    known = [root for root in ended if opener.describe_root(root)[1] is not None]
    assert known == ended[-len(known) :]
    assert 0 < len(known) < 12


def test_broker_opens_a_cores_files_in_user_folders_and_public_object_files(
    tmp_path: Path,
) -> None:
    opener = GuardedOpener(os.getpid())
    root = tmp_path / "root"
    (root / "lib").mkdir(parents=True)
    (root / "lib/own").write_text("below the sysroot")
    (root / "lib/out").symlink_to("../../out")
    (tmp_path / "out").write_text("beside the sysroot")
    (tmp_path / "core").write_text("the user's")
    tmp_path.chmod(0o700)
    opener.notify(KnownFiles((str(tmp_path / "core"),)))
    opener.notify(KnownFolder(str(root)))
    for way in (opener.open_named, opener.open_regular):
        for path in (SECRET, f"{root}/../out", f"{root}/lib/out", f"{tmp_path}/out"):
            with pytest.raises(OSError, match=r"denied|No such"):
                way(path)
    for fd in (
        opener.open_named(f"{root}/lib/own"),
        opener.open_below(str(root), "/lib/own", None, True),
        opener.open_named(os.path.realpath("/usr/bin/python3")),
        opener.open_regular(str(tmp_path / "core")),
    ):
        assert os.read(fd, 4)
        os.close(fd)


@pytest.mark.live
@pytest.mark.skipif(not ROOT, reason="only root has rights that the target lacks")
def test_keeper_opens_by_the_rights_of_the_target_and_object_files_of_everybody(
    victim: int, opener: GuardedOpener, tmp_path: Path
) -> None:
    root = f"/proc/{victim}/root"
    (tmp_path / "own").write_text("the user's")
    opener.notify(KnownFiles((str(tmp_path / "own"),)))
    program = os.path.realpath("/usr/bin/python3")
    for way in (
        lambda: opener.open_below(root, SECRET, None, True),
        lambda: opener.open_below(root, SECRET, Opener().describe_root("/proc/1/root")[1], True),
        lambda: opener.open_below("", SECRET, None, True),
        lambda: opener.open_below("", "/etc/passwd", None, True),
        lambda: opener.open_below("/proc/1/root", "/etc/passwd", None, True),
        lambda: opener.open_below("/", SECRET, Opener().describe_root("/proc/1/root")[1], True),
        lambda: opener.open_named(SECRET),
        lambda: opener.open_program(os.getpid()),  # a process that may be traced but is not recorded
        lambda: opener.open_mapped(os.getpid(), 0x1000, 0x2000),
        lambda: opener.open_memory(os.getpid(), "mem"),
        lambda: opener.open_memory(victim, "environ"),
        lambda: opener.read_status(victim, "environ"),
        lambda: opener.read_status(1, "status"),
    ):
        with pytest.raises(PermissionError):
            way()
    for fd in (
        opener.open_below(root, "/etc/passwd", None, True),
        opener.open_below("", program, None, True),
        opener.open_below("/", "/etc/passwd", Opener().describe_root(root)[1], True),
        opener.open_named(str(tmp_path / "own")),
        opener.open_program(victim),
        opener.open_memory(victim, "maps"),
    ):
        assert os.read(fd, 4)
        os.close(fd)


@pytest.mark.live
@pytest.mark.skipif(not ROOT, reason="only root has rights that others lack")
def test_broker_opens_object_files_of_an_ended_target_but_no_core_files(tmp_path: Path) -> None:
    """Use a target of root whose files are on the host."""
    tmp_path.chmod(0o700)
    program, core = tmp_path / "program", tmp_path / "core"
    shutil.copy("/bin/true", program)
    head = bytearray(program.read_bytes())
    head[16:18] = (4).to_bytes(2, "little")  # ET_CORE
    core.write_bytes(head)
    (tmp_path / "text").write_text("no object file, which is long enough for a header")
    opener = GuardedOpener(os.getpid())
    with pytest.raises(PermissionError):
        opener.open_below("", str(program), None, True)
    with subprocess.Popen(["/bin/sleep", "100"]) as target:
        opener.notify(KnownProcess(target.pid, f"/proc/{target.pid}/root"))
        target.kill()
    os.close(opener.open_below("", str(program), None, True))
    for name in ("core", "text"):
        with pytest.raises(PermissionError):
            opener.open_below("", str(tmp_path / name), None, True)


def test_file_broker_opens_all_object_files_and_no_core_files_for_a_core(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    shutil.copy("/bin/true", tmp_path / "program")
    (tmp_path / "text").write_text("no object file, which is long enough for a header")
    opener = GuardedOpener(os.getpid())
    opener.notify(AnyObjectFile())
    os.close(opener.open_named(str(tmp_path / "program")))
    if ROOT:
        for path in (SECRET, str(tmp_path / "text")):
            with pytest.raises(PermissionError):
                opener.open_named(path)


def test_sandbox_is_confined_on_each_machine_whose_calls_can_be_filtered() -> None:
    for machine in ("x86_64", "aarch64"):
        assert process_sandbox.build_filter(machine, 7)
    with pytest.raises(NotImplementedError):
        process_sandbox.build_filter("riscv64", 7)
    assert not is_confined(None)
    assert not is_confined(True, ("symbols",))
    assert (is_confined(True), is_confined(False)) == (True, False)


def test_keeper_opens_what_a_debuginfod_client_fetched(
    opener: GuardedOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path))
    (tmp_path / "ab12").mkdir()
    (tmp_path / "ab12/debuginfo").write_bytes(b"lines")
    fd = opener.open_downloaded("ab12")
    assert os.read(fd, 8) == b"lines"
    os.close(fd)
    with pytest.raises(FileNotFoundError):
        opener.open_downloaded("cd34")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_knows_every_call_by_its_number_here(machine: str) -> None:
    """Check the filter's numbers. Those above 512 belong to x32, which the filter kills."""
    code = process_sandbox.build_filter(machine, 7)
    compared = {int.from_bytes(code[at + 4 : at + 8], "little") for at in range(0, len(code), 8) if code[at] == 0x15}
    expected = {"x86_64": {0, 46, 47, 202, 262, 435}, "aarch64": {63, 211, 212, 98, 79, 435}}
    assert expected[machine] <= compared
    assert not {322, 321, 101, 59} & compared if machine == "x86_64" else not {221, 280, 117} & compared
    with pytest.raises(NotImplementedError):
        process_sandbox.build_filter("m68k", 7)


@pytest.mark.live
def test_recording_and_dump_with_a_confined_worker_have_names(tmp_path: Path) -> None:
    out, code = tmp_path / "out.collapsed", "def busy():\n    while True: pass\nprint(flush=True)\nbusy()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            target.stdout.readline()
            command = [sys.executable, "-m", "pyprof", "record", "--sandbox", "-d", "1", "-p", str(target.pid)]
            done = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True, timeout=60)
            command = [sys.executable, "-m", "pyprof", "dump", "--sandbox", "-p", str(target.pid), "--json"]
            dumped = subprocess.run(command, capture_output=True, text=True, timeout=60)
        finally:
            target.kill()
    assert done.returncode == 0, done.stderr
    stacks = [line.split(";") for line in out.read_text().splitlines()]
    named = [stack for stack in stacks if "_start" in stack and any(frame.startswith("busy (") for frame in stack)]
    assert len(named) > 0
    assert dumped.returncode == 0, dumped.stderr
    (thread,) = json.loads(dumped.stdout)["threads"]
    assert "busy" in [frame["function"] for frame in thread["frames"]]
    assert thread["frames"][-1]["function"] == "_start"
