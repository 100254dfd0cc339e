"""Tests that launched commands keep their streams, exit codes, signals and user."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pyprof.collectors.linux import procfs
from pyprof.collectors.targets.command_launch import CommandNotExecutable, CommandNotFound, calling_user, launch
from pyprof.model.sample_batch import SampleKind
from tests.collectors.targets import record
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]


def run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run code in a separate process, so that the test sees the profiler's streams and signals."""
    prefix = "from pyprof.collectors.targets.command_launch import launch\nimport sys, os, signal, time\n"
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", prefix + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9)]
)
def test_exit_code_is_that_of_the_command(script: str, code: int) -> None:
    launched = launch(["/bin/sh", "-c", script])
    launched.release()
    assert launched.wait() == code
    assert launched.poll() == code


def test_the_command_does_not_begin_before_it_is_released(tmp_path: Path) -> None:
    sign = tmp_path / "begun"
    launched = launch(["/bin/sh", "-c", f"touch {sign}"])
    time.sleep(0.1)
    assert not sign.exists()
    launched.release()
    launched.release()
    assert launched.wait() == 0
    assert sign.exists()


def test_a_cancelled_command_never_begins(tmp_path: Path) -> None:
    sign = tmp_path / "begun"
    launched = launch(["/bin/sh", "-c", f"touch {sign}"])
    launched.cancel()
    launched.cancel()
    assert not sign.exists()


def test_the_command_never_begins_when_the_profiler_is_killed_before(tmp_path: Path) -> None:
    sign = tmp_path / "begun"
    done = run(f"print(launch(['touch', {str(sign)!r}]).pid, flush=True); os.kill(os.getpid(), 9)")
    assert done.returncode == -9
    deadline = time.monotonic() + 10
    while procfs.read_state(int(done.stdout), int(done.stdout)) not in ("gone", "zombie"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not sign.exists()


def test_streams_and_environment_are_those_of_the_profiler() -> None:
    code = "c = launch(['sh', '-c', 'cat; echo $GREETING; echo err >&2']); c.release(); sys.exit(c.wait())"
    done = run(code, input="in\n", env={**os.environ, "GREETING": "hello"})
    assert (done.stdout, done.stderr, done.returncode) == ("in\nhello\n", "err\n", 0)


def test_signals_and_limits_of_the_command_are_as_if_started_alone() -> None:
    show = (
        "import signal, resource; print(signal.pthread_sigmask(0, ()), resource.getrlimit(7), "
        "[signal.getsignal(n) for n in (2, 13, 15, 17)])"
    )
    code = f"""
    import resource
    for n in (signal.SIGTERM, signal.SIGCHLD): signal.signal(n, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGUSR1])
    c = launch([sys.executable, "-c", {show!r}]); c.release(); sys.exit(c.wait())
    """
    alone = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert run(code).stdout == alone.stdout


def test_ctrl_c_reaches_the_command_and_sigterm_is_handed_on() -> None:
    code = """
    signal.signal(signal.SIGTERM, lambda n, f: c.send_signal(n))
    signal.signal(signal.SIGINT, lambda n, f: None)
    script = "trap 'echo term; exit 3' TERM; trap 'echo int' INT; echo up; while :; do sleep 0.01; done"
    c = launch(["sh", "-c", script])
    c.release()
    sys.exit(c.wait())
    """
    prefix = "from pyprof.collectors.targets.command_launch import launch\nimport sys, os, signal, time\n"
    with subprocess.Popen(
        [sys.executable, "-c", prefix + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "int\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "term\n"
        assert process.wait(100) == 3


def test_an_unknown_command_is_an_error_with_exit_code_127(tmp_path: Path) -> None:
    with pytest.raises(CommandNotFound) as bare:
        launch(["no-such-command-anywhere"])
    assert bare.value.exit_code == 127
    launched = launch([str(tmp_path / "nothing")])
    with pytest.raises(CommandNotFound, match="nothing"):
        launched.release()
    with pytest.raises(CommandNotFound):
        launch([])


def test_a_command_that_cannot_be_executed_is_an_error_with_exit_code_126(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a program")
    launched = launch([str(tmp_path / "text")])
    with pytest.raises(CommandNotExecutable, match="Permission denied") as caught:
        launched.release()
    assert caught.value.exit_code == 126


def test_a_launched_command_is_sampled_and_its_exit_code_survives() -> None:
    code = "import os\nfor i in range(3): [0 for _ in range(2_000_000)]\nos._exit(5)"
    launched = launch([sys.executable, "-c", code])
    try:
        released = False

        def release(_: object) -> bool:
            nonlocal released
            if not released:
                launched.release()
                released = True
            return launched.poll() is not None

        recording = record(launched.pid, release, rate_hz=500, idle=True)
    finally:
        launched.release()
    assert launched.wait() == 5
    names = {
        module.name
        for lane in recording.of(SampleKind.STOPPED)
        if (module := lane.batch.spaces[lane.space].module_at(lane.regs["rip"]))
    }
    assert names
    assert recording.stats is not None


def test_with_sudo_the_command_runs_as_the_calling_user_with_its_groups() -> None:
    if os.geteuid() != 0:
        missing("needs root: sudo make test")
    nobody = pwd.getpwnam("nobody")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/root",
        "USER": "root",
        "KEPT": "yes",
        "SUDO_UID": str(nobody.pw_uid),
        "SUDO_GID": str(nobody.pw_gid),
        "SUDO_USER": "nobody",
        "SUDO_COMMAND": "pyprof",
    }
    show = 'id -u; id -g; id -G; echo $HOME $USER $LOGNAME $KEPT "<$SUDO_UID$SUDO_COMMAND>"'
    code = f"c = launch(['sh', '-c', {show!r}], {environment!r}); c.release(); sys.exit(c.wait())"
    out = run(code).stdout.splitlines()
    groups = " ".join(map(str, sorted(set(os.getgrouplist("nobody", nobody.pw_gid)))))
    assert out == [
        str(nobody.pw_uid),
        str(nobody.pw_gid),
        groups,
        f"{nobody.pw_dir} nobody nobody yes <>",
    ]


def test_only_root_through_sudo_has_a_calling_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert calling_user({}) is None
    assert calling_user({"SUDO_UID": "0", "SUDO_GID": "0"}) is None
    assert calling_user({"SUDO_UID": "x", "SUDO_GID": "0"}) is None
    user = calling_user({"SUDO_UID": "123456", "SUDO_GID": "7", "A": "b"})
    assert user is not None
    assert (user.uid, user.gid, user.groups, user.environment) == (123456, 7, (7,), {"A": "b"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert calling_user({"SUDO_UID": "1000", "SUDO_GID": "1000"}) is None
