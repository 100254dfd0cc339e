"""Tests of the capabilities for recording with BPF, by unprivileged users and in user and pid namespaces."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import one_sentence
from tests.interpreters.pythons import HERE, pythons
from tests.live.support.recording import PYPROF
from tests.support import missing, need

pytestmark = [pytest.mark.live, pytest.mark.system]

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
PROGRAM = """import json, sys, threading
def leaf():
    for _ in range(2000): pass
def first():
    while True: leaf()
def second():
    while True: leaf()
threads = [threading.Thread(target=run, name=run.__name__, daemon=True) for run in (first, second)]
for thread in threads: thread.start()
print("ids", json.dumps({thread.name: thread.native_id for thread in threads}), flush=True)
threading.Event().wait(float(sys.argv[1]))
"""
ENOUGH = 5
MAX_S = 16


def with_rights(*names: str) -> list[str]:
    """Return a command prefix that runs pyprof as another user with these capabilities."""
    given = ",".join(f"+{name}" for name in names)
    return [need("setpriv"), *NOBODY[1:], f"--inh-caps={given}", f"--ambient-caps={given}"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder in which every user may write. Those of pytest are private to this user."""
    if os.geteuid() != 0:
        missing("needs root, to become another user: sudo make test")
    path = Path("/var/tmp") / f"pyprof-rights-{os.getpid()}"
    path.mkdir()
    path.chmod(0o777)
    (path / "known.py").write_text(PROGRAM)
    yield path
    shutil.rmtree(path)


def python_of_all() -> str:
    """Return an interpreter that every user may execute."""
    return next((python.path for python in pythons() if python.name.startswith("debian-")), HERE.path)


def ids_of(text: str) -> dict[str, int]:
    """Return the thread ids by thread name that the program prints."""
    found = re.search(r"^ids (.*)$", text, re.MULTILINE)
    assert found, text
    ids: dict[str, int] = json.loads(found[1])
    return ids


@dataclass
class Target:
    """A running program.

    Attributes:
        pid: Its process id.
        ids: Its thread ids by thread name, as the program itself sees them.
    """

    pid: int
    ids: dict[str, int]


@contextmanager
def running(folder: Path, before: Sequence[str] = ()) -> Iterator[Target]:
    command = [*before, python_of_all(), str(folder / "known.py"), "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdout is not None
        ids = ids_of(process.stdout.readline())
        try:
            yield Target(process.pid, ids)
        finally:
            process.kill()


@dataclass(frozen=True)
class Recorded:
    """A recording, all of whose stacks of program functions have been judged.

    Attributes:
        threads: Number of samples by (first function, thread id).
    """

    threads: dict[tuple[str, int], int]
    summary: dict[str, Any]
    said: str

    @property
    def least(self) -> int:
        return min(sum(n for (name, _), n in self.threads.items() if name == each) for each in ("first", "second"))


def record(folder: Path, by: Sequence[str], *options: str, command: bool = False) -> Recorded:
    """Record the program, for longer if the machine is busy.

    Args:
        folder: Folder for the outputs.
        by: Command prefix that runs pyprof.
        options: Further options of pyprof record.
        command: Whether pyprof starts the program.
    """
    seconds = 1.0
    while True:
        output, summary = folder / "out.collapsed", folder / "out.json"
        to = ("-t", "-q", "-r", "399", "-o", str(output), "--summary", str(summary))
        what = ("--", python_of_all(), str(folder / "known.py"), str(seconds)) if command else ("-d", str(seconds))
        done = subprocess.run(
            [*by, *PYPROF, "record", *to, *options, *what],
            capture_output=True, text=True, timeout=120, check=False, cwd="/",
        )  # fmt: skip
        if "got no processor" in done.stderr and seconds < MAX_S:  # no priority next to other work
            seconds *= 2
            continue
        assert done.returncode == 0, done.stderr
        found = Recorded(judged(output.read_text()), json.loads(summary.read_text()), done.stdout)
        if found.least > ENOUGH or seconds > MAX_S:
            assert found.least > ENOUGH, found
            return found
        seconds *= 2


def judged(text: str) -> dict[tuple[str, int], int]:
    """Return the samples by (first function of the thread, its id), and assert that all stacks are possible."""
    threads: dict[tuple[str, int], int] = {}
    for line in text.splitlines():
        stack, _, n = line.rpartition(" ")
        thread, *frames = stack.split(";")
        ours = [frame.partition(" (")[0] for frame in frames if frame.endswith("(known.py)")]
        tid = re.search(r" \(tid (\d+)\)$", thread)
        if ours[:1] in (["first"], ["second"]):
            assert ours[1:] in ([], ["leaf"]), stack
            assert tid, stack
            who = ours[0], int(tid[1])
            threads[who] = threads.get(who, 0) + int(n)
        else:
            assert ours in ([], ["<module>"]), stack
    return threads


def refused(folder: Path, by: Sequence[str], *arguments: str) -> str:
    """Run pyprof, which must fail, and return its error message with the hint."""
    command = [*by, *PYPROF, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert done.returncode == 1, (done.stdout, done.stderr)
    one_sentence(done)
    return done.stderr


OF_PROGRAM = ("bpf", "perfmon")
OF_OTHERS = (*OF_PROGRAM, "sys_ptrace", "dac_read_search")


@pytest.mark.parametrize("collector", ["bpf", "auto"])
def test_user_with_two_capabilities_records_its_own_processes(collector: str, folder: Path) -> None:
    with running(folder, NOBODY) as target:
        found = record(folder, with_rights(*OF_PROGRAM), "--collector", collector, "-p", str(target.pid))
    assert found.threads.keys() == {*target.ids.items()}
    assert found.summary["stops"]["count"] == 0
    assert "(BPF)" in found.summary["notes"][0]["text"]


def test_user_with_four_capabilities_records_those_of_others(folder: Path) -> None:
    with running(folder) as target:
        found = record(folder, with_rights(*OF_OTHERS), "--collector", "bpf", "-p", str(target.pid))
    assert found.threads.keys() == {*target.ids.items()}
    assert found.summary["stops"]["count"] == 0


@pytest.mark.parametrize("rights", [OF_PROGRAM, OF_OTHERS[:3]])
def test_processes_of_others_are_refused_with_what_is_missing(rights: tuple[str, ...], folder: Path) -> None:
    with running(folder) as target:
        said = refused(folder, with_rights(*rights), "record", "--collector", "bpf", "-p", str(target.pid))
    assert "belongs to user 0" in said
    assert "setcap cap_sys_ptrace,cap_dac_read_search+ep" in said
    assert ("without CAP_DAC_READ_SEARCH" in said) == ("sys_ptrace" in rights)


@pytest.mark.parametrize(
    ("rights", "lacks"),
    [((), "CAP_BPF and CAP_PERFMON"), (("bpf",), "CAP_PERFMON")],
)
def test_user_without_them_is_told_which_and_auto_takes_another_collector(
    rights: tuple[str, ...], lacks: str, folder: Path
) -> None:
    by = with_rights(*rights) if rights else NOBODY
    reason = f"programs in the kernel (BPF) need root, or CAP_BPF and CAP_PERFMON: pyprof lacks {lacks}"
    with running(folder, NOBODY) as target:
        assert f"pyprof: {reason}\n" in refused(folder, by, "record", "--collector", "bpf", "-p", str(target.pid))
        found = record(folder, by, "-p", str(target.pid))
        doctor = subprocess.run([*by, *PYPROF, "doctor", str(target.pid)], capture_output=True, text=True, timeout=60)
    assert found.threads.keys() == {*target.ids.items()}
    how, *notes = (note["text"] for note in found.summary["notes"])
    assert how.startswith("Sampled by ")
    assert "(BPF)" not in how
    assert any(reason in note for note in notes), notes
    assert f"--collector bpf: no: {reason}" in doctor.stdout


def test_native_programs_miss_nothing_without_it(folder: Path) -> None:
    summary = folder / "out.json"
    to = ("-q", "-o", str(folder / "out.collapsed"), "--summary", str(summary))
    with subprocess.Popen([*NOBODY, "sh", "-c", "while :; do :; done"]) as process:
        for seconds in ("1", "4", "16"):
            command = [*NOBODY, *PYPROF, "record", *to, "-d", seconds, "-p", str(process.pid)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")
            if "got no processor" not in done.stderr:
                break
        process.kill()
    assert done.returncode == 0, done.stderr
    notes = json.loads(summary.read_text())["notes"]
    assert notes
    assert not any("BPF" in note["text"] for note in notes)


def in_namespace(*options: str) -> list[str]:
    """Return a command prefix that runs a command in new namespaces."""
    command = [need("unshare"), *options]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=20, check=False)
    if probe.returncode:
        missing(f"needs namespaces: {probe.stderr.strip()}")
    return command


@pytest.mark.parametrize(
    ("namespace", "reason"),
    [
        (("-Ur",), "need rights outside of this user namespace"),
        (("-pf", "--kill-child", "--mount-proc"), "do not know the process ids of this pid namespace"),
    ],
    ids=["user", "pid"],
)
def test_bpf_is_refused_in_a_user_namespace_and_auto_uses_another_collector(
    namespace: tuple[str, ...], reason: str, folder: Path
) -> None:
    by = in_namespace(*namespace)
    assert reason in refused(folder, by, "record", "--collector", "bpf", "--", "true")
    doctor = subprocess.run([*by, *PYPROF, "doctor"], capture_output=True, text=True, timeout=60, check=False)
    assert f"--collector bpf: no: programs in the kernel (BPF) {reason}" in doctor.stdout
    found = record(folder, by, command=True)
    assert found.threads.keys() == {*ids_of(found.said).items()}
    assert any(reason in note["text"] for note in found.summary["notes"]), found.summary["notes"]


def outside(pid: int) -> dict[int, int]:
    """Map the ids of a process's threads in its innermost pid namespace to those in the test's namespace."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        numbers = re.search(r"^NSpid:\s+(.*)$", (task / "status").read_text(), re.MULTILINE)
        assert numbers
        found[int(numbers[1].split()[-1])] = int(task.name)
    return found


def test_process_in_a_pid_namespace_has_its_functions_and_our_ids(folder: Path) -> None:
    with running(folder, in_namespace("-pf", "--kill-child", "--mount-proc")) as target:
        (pid,) = Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()
        known = outside(int(pid))
        expected = {(name, known[tid]) for name, tid in target.ids.items()}
        assert all(tid not in target.ids.values() for _, tid in expected)
        found = record(folder, (), "--collector", "bpf", "-p", pid)
    assert found.threads.keys() == expected
    assert found.summary["stops"]["count"] == 0
