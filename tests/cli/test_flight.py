"""Tests of `pyprof record --last`: the last part is written repeatedly while the recording continues."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.recording.reader import load_recording
from pyprof.session.flight_recorder import LastWindowsSink
from tests.cli.support import BUSY, PYPROF, one_sentence, pyprof, python
from tests.exporters.profiles import golden
from tests.recording.support import stored

pytestmark = [pytest.mark.live, pytest.mark.system]

PATIENCE_S = 60


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def record(folder: Path, *arguments: str, bound: tuple[str, str] = ("--last", "1s")) -> subprocess.Popen[str]:
    command = [*PYPROF, "record", *bound, "-o", str(folder / "x-%i.pyprof"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_last_part_is_written_by_signal_and_trigger_and_at_the_end(tmp_path: Path) -> None:
    """Send the signal to both processes of pyprof."""
    files = [tmp_path / f"x-{nth}.pyprof" for nth in range(3)]
    flag = tmp_path / "flag"
    with python(BUSY) as target:
        recorder = record(tmp_path, "-p", str(target.pid), "--trigger", f"file:{flag}")
        until(lambda: len(list(tmp_path.glob("pyprof-last-*/0000000[2-9].pyprof"))) > 0)
        os.killpg(recorder.pid, signal.SIGUSR1)
        until(files[0].exists)
        flag.touch()
        until(files[1].exists)
        recorder.send_signal(signal.SIGINT)
        _, said = recorder.communicate(timeout=PATIENCE_S)
    assert recorder.returncode == 0, said
    assert "pyprof: SIGUSR1: writing what is kept\n" in said
    assert f"pyprof: {flag} appeared: writing what is kept\n" in said
    found = [load_recording(path) for path in files]
    assert all(each.duration_ns <= 1_000_000_000 and len(each.stack) for each in found)
    begins = [each.start_ns for each in found]
    assert begins == sorted(set(begins))
    assert sorted(tmp_path.iterdir()) == [flag, *files]


def test_kept_windows_are_limited_by_size_alone(tmp_path: Path) -> None:
    kept = LastWindowsSink(str(tmp_path), 1e6, 2 * stored(golden(), tmp_path, "size").stat().st_size)
    (tmp_path / "size").unlink()
    for number in range(5):
        kept.receive_profile(golden(), number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000003.pyprof", "00000004.pyprof"]
    assert len(kept.together().stack) == 2 * len(golden().stack)


def test_recording_bounded_by_size_is_written_by_trigger_and_at_the_end(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    files = [tmp_path / f"x-{nth}.pyprof" for nth in range(2)]
    with python(BUSY) as target:
        recorder = record(tmp_path, "-p", str(target.pid), "--trigger", f"file:{flag}", bound=("--max-size", "1M"))
        until(lambda: len(list(tmp_path.glob("pyprof-last-*/00000000.pyprof"))) > 0)
        flag.touch()
        until(files[0].exists)
        time.sleep(1)
        recorder.send_signal(signal.SIGINT)
        _, said = recorder.communicate(timeout=PATIENCE_S)
    assert recorder.returncode == 0, said
    part, whole = map(load_recording, files)
    assert 0 < len(part.stack) < len(whole.stack)
    assert whole.start_ns == part.start_ns
    assert sorted(tmp_path.iterdir()) == [flag, *files]
    given = {name: whole.options.get(name) for name in ("pids", "trigger", "max_size", "last")}
    assert given == {"pids": str(target.pid), "trigger": f"file:{flag}", "max_size": str(1 << 20), "last": None}


def test_killed_flight_recorder_leaves_files_that_merge_reads(tmp_path: Path) -> None:
    with python(BUSY) as target:
        recorder = record(tmp_path, "-p", str(target.pid))
        until(lambda: len(list(tmp_path.glob("pyprof-last-*/0000000[1-9].pyprof"))) > 0)
        os.killpg(recorder.pid, signal.SIGKILL)
        recorder.communicate(timeout=PATIENCE_S)
    out = tmp_path / "all.pyprof"
    done = pyprof("merge", *map(str, tmp_path.glob("pyprof-last-*/*.pyprof")), "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert len(load_recording(out).stack) > 0


def test_recording_of_a_command_begins_after_the_delay(tmp_path: Path) -> None:
    """Record a shell loop that ends once the recording has written samples to its file."""
    out = tmp_path / "a.pyprof"
    before = time.time_ns()
    command = ["--", "sh", "-c", 'until [ -e "$0" ]; do :; done', str(out)]
    done = pyprof("record", "--delay", "0.5", "-d", "10", "-o", str(out), *command)
    assert done.returncode == 0, done.stderr
    found = load_recording(out)
    assert found.start_ns >= before + 500_000_000
    assert (found.options["delay"], found.options["command"]) == ("0.5", "sh")
    assert found.options["duration"] == "10.0"
    assert len(found.stack) > 0
    done = pyprof("record", "--delay", "30", "-o", str(out), "--", "true")
    assert "ended within the 30 s of --delay" in one_sentence(done)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--last", "10m"], "--last writes several files"),
        (["--last", "10m", "--every", "5"], "--every keeps all windows"),
        (["--trigger", "cpu>3"], "--trigger is for a flight recorder"),
        (["--max-size", "10M"], "--max-size writes several files"),
        (["--max-size", "10M", "--every", "5"], "--every keeps all windows, --max-size only the last ones"),
        (["--last", "10x"], "not a time of at least one second"),
        (["--last", "10m", "--max-size", "3"], "not a size of at least 1M"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    done = pyprof("record", "-p", str(os.getpid()), "-o", str(tmp_path / "x.pyprof"), *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
