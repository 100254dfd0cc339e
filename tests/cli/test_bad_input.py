"""Tests of bad input: one clear error message, the exit code, no traceback, and an undisturbed target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyprof.cli.terminal_output import refuse
from pyprof.errors import AccessDenied
from tests.cli.support import BUSY, SLEEPY, one_sentence, pyprof, python

pytestmark = [pytest.mark.live, pytest.mark.system]


def test_no_such_process() -> None:
    done = pyprof("record", "-p", "999999999", "-o", os.devnull, "-f", "collapsed")
    assert done.returncode == 1
    assert "no process 999999999" in one_sentence(done)


def test_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    done = pyprof("dump", "-p", str(child.pid))
    child.wait()
    assert done.returncode == 1
    assert "zombie" in one_sentence(done)


def test_kernel_thread() -> None:
    done = pyprof("dump", "-p", "2")
    if "no process 2" in done.stderr:  # a pid namespace has no kernel threads
        assert done.returncode == 1
    else:
        assert "kernel thread" in one_sentence(done)


def test_ourselves() -> None:
    """Let the shell exec pyprof, so that its $$ is the profiler's own pid. A session's leader has no front process."""
    command = ["sh", "-c", f"exec {sys.executable} -m pyprof dump -p $$"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, start_new_session=True)
    assert done.returncode == 1
    assert "itself" in one_sentence(done)


def test_foreign_process_without_rights_names_the_command_that_helps() -> None:
    if os.geteuid() != 0:
        done = pyprof("dump", "-p", "1")
    else:
        done = subprocess.run(
            [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                sys.executable,
                "-m",
                "pyprof",
                "dump",
                "-p",
                "1",
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd="/",
        )
    assert done.returncode == 1, done.stderr
    assert "belongs to user" in one_sentence(done)
    assert "sudo" in done.stderr


def test_process_held_by_another_tracer_is_named() -> None:
    with python(SLEEPY) as target:
        tracer = subprocess.Popen(["strace", "-q", "-o", os.devnull, "-p", str(target.pid)], stdin=subprocess.DEVNULL)
        status = Path(f"/proc/{target.pid}/status")
        while f"TracerPid:\t{tracer.pid}" not in status.read_text():
            assert tracer.poll() is None
        done = pyprof("dump", "-p", str(target.pid))
        tracer.terminate()
        tracer.wait()
        assert target.poll() is None
    assert done.returncode == 1
    assert "strace" in one_sentence(done)


def test_unwritable_output_is_found_before_recording(tmp_path: Path) -> None:
    with python(BUSY) as target:
        done = pyprof("record", "-p", str(target.pid), "-o", str(tmp_path / "none" / "a.html"))
    assert done.returncode == 1
    assert "not a directory" in one_sentence(done)


def test_full_disk_keeps_the_recording_elsewhere(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with python(BUSY) as target:
        done = pyprof(
            *("record", "-p", str(target.pid), "-d", "0.3", "-o", "/dev/full", "-f", "collapsed"), env=environment
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (other,) = tmp_path.iterdir()
    assert str(other) in done.stderr
    assert other.read_text().startswith("_start;")


@pytest.mark.parametrize(
    "arguments",
    [
        ("record",),
        ("record", "-p", "1", "--", "true"),
        ("record", "-p", "0"),
        ("record", "-p", "1", "-r", "-5"),
        ("record", "-p", "1", "-d", "soon"),
        ("record", "-p", "1", "-o", "a.xyz"),
        ("record", "-p", "1", "-f", "svg"),
        ("record", "-p", "1", "-f", "pprof", "-o", "-"),
        ("record", "-p", "1", "--every", "5", "-o", "a.html"),
        ("record", "-p", "1", "--unwind", "magic"),
        ("record", "-p", "1", "--stack-size", "1"),
        ("dump",),
        ("frobnicate",),
    ],
    ids=" ".join,
)
def test_impossible_options_are_usage_errors(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = pyprof(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        (("recrod",), "record"),
        (("record", "-p", "1", "--colector=ptrace"), "--collector"),
        (("record", "-p", "1", "--mode", "offcp"), "offcpu"),
        (("agent", "stats"), "status"),
        (("dump", "1234"), "-p 1234"),
    ],
)
def test_mistyped_word_is_answered_with_the_nearest_one(mistyped: tuple[str, ...], meant: str) -> None:
    done = pyprof(*mistyped)
    assert (done.returncode, done.stderr.endswith(f", did you mean {meant}?\n")) == (2, True)


def test_word_like_no_other_is_answered_without_a_suggestion() -> None:
    for arguments in (("frobnicate",), ("record", "-p", "1", "--xyzzy")):
        assert "did you mean" not in pyprof(*arguments).stderr


@pytest.mark.parametrize(
    ("message", "pid", "hint"),
    [
        ("process 12 may not be traced", 34, "run pyprof doctor 12, which says what is missing"),
        ("it may not be traced", 34, "run pyprof doctor 34, which says what is missing"),
        ("they may not be traced", None, "run pyprof doctor PID, which says what is missing"),
    ],
)
def test_hint_names_the_process(message: str, pid: int | None, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    refuse(AccessDenied(message), pid)
    assert capsys.readouterr().err == f"pyprof: {message}\n  hint: {hint}\n"


def test_missing_command_is_told_as_by_a_shell(tmp_path: Path) -> None:
    done = pyprof("record", "-o", str(tmp_path / "a.html"), "--", "no-such-command-here")
    assert done.returncode == 127
    assert "no-such-command-here" in one_sentence(done)


def test_target_that_ends_at_once_leaves_no_page_and_a_reason(tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    done = pyprof("record", "-o", str(out), "--", "true")
    assert done.returncode == 0, done.stderr
    assert not out.exists() or out.stat().st_size > 1000
    assert out.exists() != ("nothing was sampled: the command ended before it could be sampled" in done.stderr)
