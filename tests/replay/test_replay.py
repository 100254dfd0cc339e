"""Tests that saved recordings give the expected outputs, byte for byte or by digest.

After an intended change of outputs, run `python -m tests.replay accept` and commit the difference.
"""

from __future__ import annotations

import difflib
import zipfile
from pathlib import Path

import pytest

from pyprof.errors import FormatError
from pyprof.recording.reader import load_recording
from tests.recording.support import stored
from tests.replay.batch_log import ReplayCollector
from tests.replay.expected import EXPECTED, as_text
from tests.replay.playing import LOGS, profiles, unpacked, written

NAMES = ("native", "python", "offcpu", "remote", "core")


@pytest.mark.parametrize("name", NAMES)
def test_saved_recording_gives_the_same_outputs(name: str, tmp_path: Path) -> None:
    """Compare the outputs of the log, and of a .pyprof file with its profile."""
    log = LOGS / f"{name}.zip"
    played: dict[str, bytes] = {}
    kept: dict[str, bytes] = {}
    with unpacked(log) as files:
        for view, profile in profiles(log, files):
            played |= written(view, profile)
            kept |= written(view, load_recording(stored(profile, tmp_path)))
    assert kept == played
    found = as_text(played)
    expected = (EXPECTED / f"{name}.txt").read_text()
    assert len(expected.splitlines()) > 20
    changes = list(difflib.unified_diff(expected.splitlines(), found.splitlines(), "was", "is", lineterm="", n=0))
    assert not changes, "\n".join(changes[:60])


def test_log_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.zip"
    with zipfile.ZipFile(path, "w") as stored:
        stored.writestr("log.json", '{"version": 99}')
    with pytest.raises(FormatError, match="version 99"):
        ReplayCollector(str(path), str(tmp_path))


def test_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.zip"
    path.write_bytes(b"PK\3\4 no zip at all")
    with pytest.raises(FormatError, match="no batch log"):
        ReplayCollector(str(path), str(tmp_path))
