"""Tests that each reason why a process cannot be sampled is one message with a hint, before pyprof attaches."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.collectors.targets import attach_checks
from pyprof.errors import AccessDenied, NoSuchProcess, NotTraceable, PyprofError, UnsupportedArchitecture
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]

Child = Callable[..., subprocess.Popen[bytes]]
NOBODY = 65534


def refused(pid: int) -> PyprofError:
    with pytest.raises(PyprofError) as caught:
        attach_checks.check_target(pid)
    assert caught.value.message
    findings = attach_checks.target_findings(pid)
    assert [f.text for f in findings if f.fatal][:1] == [caught.value.message]
    return caught.value


def test_a_process_of_ours_passes_every_check(child: Child) -> None:
    process = child(["sleep", "60"])
    attach_checks.check_target(process.pid)
    assert all(finding.ok for finding in attach_checks.target_findings(process.pid))


def test_no_such_process() -> None:
    error = refused(2**22 + 1)
    assert isinstance(error, NoSuchProcess)
    assert str(2**22 + 1) in error.message
    with pytest.raises(NoSuchProcess):
        PtraceCollector(2**22 + 1, CollectOptions(), Diagnostics())


def test_ourselves_and_our_threads() -> None:
    assert "itself" in refused(os.getpid()).message
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    assert "profiler itself" in refused(thread.native_id).message
    done.set()
    thread.join()


def test_a_thread_id_names_its_process() -> None:
    code = (
        "import threading, time\n"
        "t = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start()\n"
        "print(t.native_id, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        error = refused(int(process.stdout.readline()))
        assert isinstance(error, NotTraceable)
        assert error.hint == f"-p {process.pid}"
        process.kill()


def test_a_zombie_names_its_parent() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        error = refused(process.pid)
    assert isinstance(error, NotTraceable)
    assert "zombie" in error.message
    assert str(os.getpid()) in error.message


def test_a_kernel_thread() -> None:
    if not Path("/proc/2/stat").exists() or "kthreadd" not in Path("/proc/2/stat").read_text():
        missing("needs a pid namespace that shows kernel threads: the first one")
    error = refused(2)
    assert isinstance(error, NotTraceable)
    assert "kernel thread" in error.message


def test_a_process_that_is_traced_already_names_its_tracer(child: Child) -> None:
    process = child(["sleep", "60"])
    hold = (
        "import sys\nfrom pyprof.collectors.linux import libc\n"
        "print(libc.seize(int(sys.argv[1])), flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(process.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "0\n"
        error = refused(process.pid)
        assert isinstance(error, NotTraceable)
        assert f"process {tracer.pid} (python" in error.message
        tracer.communicate("")
    attach_checks.check_target(process.pid)


def test_setuid_program_of_our_own_says_whose_rights_it_has() -> None:
    if os.geteuid() != 0:
        missing("needs root, to become another user: sudo make test")
    with tempfile.TemporaryDirectory(prefix="pyprof-test-") as folder:
        os.chmod(folder, 0o755)
        program = os.path.join(folder, "sleep")
        shutil.copy(shutil.which("sleep") or "", program)
        os.chown(program, 1000, -1)
        os.chmod(program, 0o4755)
        process = subprocess.Popen([program, "60"], user=NOBODY)
        try:
            assert "belongs to user 1000, pyprof runs as user" in as_nobody(process.pid)
        finally:
            process.kill()
            process.wait()


def test_a_process_of_another_user_says_how_to_get_the_right(child: Child) -> None:
    if os.geteuid() != 0:
        missing("needs root, to become another user: sudo make test")
    process = child(["sleep", "60"])
    done = as_nobody(process.pid)
    assert done.startswith("AccessDenied|process ")
    assert "belongs to user 0" in done
    assert "sudo pyprof" in done
    assert "setcap cap_sys_ptrace,cap_dac_read_search+ep" in done


def test_a_process_that_forbids_it_is_refused(child: Child) -> None:
    if os.geteuid() != 0:
        missing("needs root, to become another user: sudo make test")
    code = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); print('ready', flush=True); time.sleep(60)"
    process = child(["python3", "-c", code], user=NOBODY, group=NOBODY, cwd="/", stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    assert as_nobody(process.pid).startswith("AccessDenied|")


def as_nobody(pid: int) -> str:
    """Return the message of check_target for an unprivileged user, in a fork because that user may not read the
    sources.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                attach_checks.check_target(pid)
                text = "allowed"
            except PyprofError as error:
                text = f"{type(error).__name__}|{error.message}|{error.hint}"
            os.write(write, text.encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


def test_the_collector_says_the_same_as_the_check(child: Child) -> None:
    if os.geteuid() != 0:
        missing("needs root, to become another user: sudo make test")
    process = child(["sleep", "60"])
    child_pid = os.fork()
    if child_pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                PtraceCollector(process.pid, CollectOptions(), Diagnostics())
            except AccessDenied:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child_pid, 0)[1]) == 0


@pytest.mark.parametrize(("at", "value", "words"), [(4, 1, "arm|32-bit"), (18, 183, "aarch64|machine")])
def test_a_program_of_another_architecture_is_refused(
    at: int, value: int, words: str, child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = child(["sleep", "60"])
    image = bytearray(Path("/proc/self/exe").read_bytes()[:64])
    image[at] = value
    if at == 4:
        image[18] = 40
    (tmp_path / "exe").write_bytes(image)
    real = ProcDir.open
    monkeypatch.setattr(
        ProcDir,
        "open",
        lambda self, name, flags=os.O_RDONLY: (
            os.open(tmp_path / "exe", flags) if name == "exe" else real(self, name, flags)
        ),
    )
    error = refused(process.pid)
    assert isinstance(error, UnsupportedArchitecture)
    assert any(word in error.message for word in words.split("|"))


def test_the_machine_is_described_with_a_remedy_for_each_problem() -> None:
    findings = attach_checks.machine_findings()
    text = " ".join(finding.text for finding in findings)
    for word in ("x86_64", "CAP_SYS_PTRACE", "ptrace_scope", "seccomp", "namespaces", "perf_event", "CAP_NET_ADMIN"):
        assert word in text
    assert all(finding.hint for finding in findings if not finding.ok and "not in this kernel" not in finding.text)


def test_good_findings_say_nothing_that_reads_like_a_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_checks, "_sysctl", lambda name: None)
    good = " ".join(finding.text for finding in attach_checks.machine_findings() if finding.ok)
    assert not re.search(r"not there|another user|out of reach|not active|cannot|gone", good)


@pytest.mark.parametrize(
    ("scope", "capable", "fatal", "ok"),
    [(0, False, False, True), (1, False, False, False), (1, True, False, True), (3, True, True, False)],
)
def test_yama_is_explained(scope: int, capable: bool, fatal: bool, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_checks, "_sysctl", lambda name: scope)
    finding = attach_checks._yama(capable)
    assert (finding.fatal, finding.ok) == (fatal, ok)
    assert bool(finding.hint) == (not ok)
    assert "ptrace_scope" in finding.text


def test_looking_at_a_process_does_not_touch_it(child: Child) -> None:
    process = child(["sleep", "60"])
    while not Path(f"/proc/{process.pid}/syscall").read_text().startswith("230 "):  # 230 is clock_nanosleep
        time.sleep(0.001)
    before = Path(f"/proc/{process.pid}/schedstat").read_text()
    for _ in range(20):
        attach_checks.target_findings(process.pid)
    assert Path(f"/proc/{process.pid}/schedstat").read_text().split()[2] == before.split()[2]
    assert libc.detach(process.pid) == -errno.ESRCH
