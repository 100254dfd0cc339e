"""Tests of killed and stopped helper processes of pyprof: the output is written, and no process stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

import pyprof
from tests.cli.support import BUSY, PYPROF, python
from tests.cli.test_start import signalled, states
from tests.session.test_worker import WAITS_S, _is_zombie, recording_to, until

pytestmark = pytest.mark.live

GONE = "pyprof: the process that opens files and writes outputs has ended"
INSTEAD = "what was recorded is written without it"


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def has_ended(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}") or _is_zombie(pid)


@pytest.mark.parametrize(
    ("output", "options"), [("a.collapsed", ()), ("a.html", ("--sandbox",)), ("a.pyprof", ("--sandbox",))]
)
def test_output_is_written_where_the_file_broker_is_killed(
    output: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / output
    with python(BUSY) as target:
        for seconds in WAITS_S:
            with recording_to(out, target.pid, *options) as (recorder, worker):
                (broker,) = children(worker)
                time.sleep(seconds)
                os.kill(broker, signal.SIGKILL)
                recorder.send_signal(signal.SIGINT)
                _, text = recorder.communicate(timeout=100)
            assert recorder.returncode == 1
            assert "Traceback" not in text
            until(partial(has_ended, worker))
            assert states(target.pid) <= {"R", "S"}
            if "samples of 1 thread" in text:
                break
        assert [line for line in text.splitlines() if line.startswith(GONE)] == [
            f"{GONE}: {INSTEAD}, some names may be missing"
        ]
        assert out.read_text().startswith("<!") if output == "a.html" else pyprof.load(out).summary.samples


def test_windows_after_the_end_of_the_file_broker_are_written(tmp_path: Path) -> None:
    with python(BUSY) as target:
        options = ("--every", "1", "--sandbox")
        with recording_to(tmp_path / "a.%i.pyprof", target.pid, *options) as (recorder, worker):
            until((tmp_path / "a.0.pyprof").exists)
            for broker in children(worker):
                os.kill(broker, signal.SIGKILL)
            until((tmp_path / "a.3.pyprof").exists)
            recorder.send_signal(signal.SIGINT)
            _, text = recorder.communicate(timeout=100)
    assert recorder.returncode == 1
    assert "Traceback" not in text
    assert text.count(INSTEAD) == 1


def test_file_broker_that_is_stopped_goes_on_at_the_end_and_nothing_is_lost(tmp_path: Path) -> None:
    out = tmp_path / "a.collapsed"
    with python(BUSY) as target:
        for seconds in WAITS_S:
            with recording_to(out, target.pid) as (recorder, worker):
                (broker,) = children(worker)
                time.sleep(seconds)
                os.kill(broker, signal.SIGSTOP)
                recorder.send_signal(signal.SIGINT)
                recorder.communicate(timeout=100)
            until(partial(has_ended, broker))
            if out.exists() and "_start;__libc_start_main" in out.read_text():
                break
    assert "_start;__libc_start_main" in out.read_text()


def test_interrupted_recording_leaves_no_worker_that_was_stopped_before_it_began(tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    environment = signalled(
        tmp_path, "pyprof.session.worker.sandbox", signal.SIGSTOP
    )  # only the worker imports this module
    with python(BUSY) as target:
        command = [*PYPROF, "record", "-p", str(target.pid), "-o", str(out)]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        ) as recorder:
            until(lambda: any("T" in states(pid) for pid in children(recorder.pid)))
            (worker,) = children(recorder.pid)
            recorder.send_signal(signal.SIGINT)
            _, text = recorder.communicate(timeout=100)
    assert (recorder.returncode, text) == (130, "pyprof: ended before the recording began: nothing was written\n")
    assert not out.exists()
    until(partial(has_ended, worker))


@pytest.mark.parametrize("is_confined", [True, False])
def test_library_says_that_files_could_not_be_opened(is_confined: bool) -> None:
    """A worker that keeps its rights opens files itself, so it lacks none."""
    others = set(children(os.getpid()))  # a browser of tests before this one, for example
    with python(BUSY) as target, pyprof.attach(target.pid, collector="ptrace", sandbox=is_confined) as recording:
        (worker,) = [pid for pid in {*children(os.getpid())} - others - {target.pid} if children(pid)]
        for broker in children(worker):
            os.kill(broker, signal.SIGKILL)
        recording.wait(3)
        profile = recording.stop()
    assert profile.summary.samples
    assert ("file_broker_gone" in profile.summary.errors) == is_confined
    assert all(frame.title for frame in profile.frames)
