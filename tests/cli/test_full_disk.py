"""Tests of output to a disk that is or becomes full: old files stay, and new output is written elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pyprof.recording.reader import load_recording
from tests.cli.support import BUSY, PYPROF, one_sentence, pyprof, python
from tests.exporters.profiles import golden
from tests.recording.support import stored
from tests.small_disk import fill, only_root, small_disk

pytestmark = [pytest.mark.live, pytest.mark.system, only_root]


@pytest.mark.parametrize("name", ["both.pyprof", "both.html"])
def test_merge_leaves_what_was_there(name: str, tmp_path: Path) -> None:
    part, elsewhere = stored(golden(), tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    with small_disk(tmp_path / "disk", "96k") as disk:
        (disk / name).write_bytes(b"what was there")
        fill(disk)
        environment = {**os.environ, "TMPDIR": str(elsewhere)}
        done = pyprof("merge", str(part), str(part), "-o", str(disk / name), env=environment)
        assert done.returncode == 1
        assert "No space left" in one_sentence(done)
        assert (disk / name).read_bytes() == b"what was there"
        assert {path.name for path in disk.iterdir()} == {name, "others"}
    (other,) = elsewhere.iterdir()
    assert str(other) in done.stderr
    assert other.stat().st_size


def test_recording_that_grows_until_the_disk_is_full_is_whole(tmp_path: Path) -> None:
    """Check that the whole recording is in its file, if its temporary data makes room there, or elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with small_disk(tmp_path / "disk", "256k") as disk, python(BUSY) as target:
        place = disk / "a.pyprof"
        command = [*PYPROF, "record", "-p", str(target.pid), "-o", str(place)]
        environment = {**os.environ, "TMPDIR": str(elsewhere)}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as recorder:
            give_up = time.monotonic() + 60
            while not list(disk.glob("*-wal")):
                assert recorder.poll() is None
                assert time.monotonic() < give_up
                time.sleep(0.02)
            fill(disk)
            time.sleep(2)
            recorder.send_signal(signal.SIGINT)
            _, said = recorder.communicate(timeout=60)
        assert "Traceback" not in said
        there = place.exists()
        assert recorder.returncode == int(not there)
        assert ("No space left" in said) is not there
        (other,) = [*disk.glob("*.pyprof"), *elsewhere.glob("pyprof-*")]
        profile = load_recording(str(other))
        assert profile.summary.samples
        assert profile.duration_ns > 2e9
        assert {path.name for path in disk.iterdir()} <= {"others", "a.pyprof"}
