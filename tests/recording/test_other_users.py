"""Tests of reading another user's recording, as a profile and with SQLite."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import pyprof
from pyprof.errors import RecordingError
from pyprof.recording.writer import FileJournal
from tests.exporters.profiles import golden
from tests.recording.support import stored
from tests.recording.test_journal import kept

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="another user is wanted")

NOBODY = 65534


def loaded(path: Path) -> int:
    return len(pyprof.load(path).stack)


def asked(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        (samples,) = database.execute("SELECT sum(samples) FROM windows").fetchone()
    return int(samples)


BY = pytest.mark.parametrize("samples", [loaded, asked], ids=["pyprof", "sqlite"])
Samples = Callable[[Path], int]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that everyone may read and only its owner may write."""
    with tempfile.TemporaryDirectory(prefix="pyprof-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextmanager
def as_nobody() -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def waiting(path: Path) -> FileJournal:
    """Return the journal of a recording of which half is written."""
    journal = kept(path, golden(), 4)
    while journal._parts.qsize():
        time.sleep(0.001)
    return journal


@BY
def test_whole_recording_is_read_by_another_user(samples: Samples, folder: Path) -> None:
    path = stored(golden(), folder)
    assert samples(path) == len(golden().stack)
    with as_nobody():
        assert not os.access(folder, os.W_OK, effective_ids=True)
        assert samples(path) == len(golden().stack)
    assert [entry.name for entry in folder.iterdir()] == ["a.pyprof"]


@BY
def test_recording_under_way_is_read_by_another_user(samples: Samples, folder: Path) -> None:
    path = folder / "a.pyprof"
    with closing(waiting(path)):
        with as_nobody():
            found = samples(path)
        assert 0 < found <= len(golden().stack)
    assert [entry.name for entry in folder.iterdir()] == ["a.pyprof"]


def test_what_a_kill_left_is_read_by_another_user(folder: Path) -> None:
    path = folder / "a.pyprof"
    killed = folder / "killed.pyprof"
    with closing(waiting(path)):
        for end in ("", "-wal"):
            Path(f"{killed}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    with as_nobody():
        assert loaded(killed) > 0


def test_log_that_another_user_plants_beside_a_recording_is_not_read(folder: Path) -> None:
    path, alone, planted = folder / "a.pyprof", folder / "b.pyprof", folder / "b.pyprof-wal"
    with closing(waiting(path)):
        alone.write_bytes(path.read_bytes())
        planted.write_bytes(Path(f"{path}-wal").read_bytes())
    log = planted.read_bytes()
    before = loaded(alone)
    os.chown(planted, NOBODY, -1)
    assert _samples_or_none(alone) < before
    planted.unlink()
    (folder / "elsewhere").write_bytes(log)
    planted.symlink_to(folder / "elsewhere")
    assert _samples_or_none(alone) < before


def _samples_or_none(path: Path) -> int:
    try:
        return loaded(path)
    except RecordingError:
        return 0


@BY
def test_recording_that_another_user_may_not_read_is_an_error(samples: Samples, folder: Path) -> None:
    path = stored(golden(), folder)
    path.chmod(0o600)
    with (
        as_nobody(),
        pytest.raises((RecordingError, sqlite3.OperationalError), match=r"Permission denied|unable to open"),
    ):
        samples(path)
