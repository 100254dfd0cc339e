"""Tests of a server whose database is damaged, or whose disk is full when it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyprof.fleet.server.store import local_database
from pyprof.fleet.server.store.clickhouse_engine import StoreError
from tests.server.serving import PATIENCE_S, Served, served, windows
from tests.small_disk import only_root, small_disk

WINDOWS = 5
SLOW_REBUILD = """
import os, sys, time
from pyprof.fleet.server.ingest.database_indexer import Indexer
real = Indexer.catch_up
def catch_up(self):
    while not os.path.exists({go!r}):
        time.sleep(0.01)
    return real(self)
Indexer.catch_up = catch_up
sys.argv[:] = sys.argv[3:]
from pyprof.__main__ import main
main()
"""
"""A program that changes a part of pyprof, and then runs the command `python -m pyprof ...` that follows it."""


def fill(data: Path) -> None:
    """Run a server until its database has some windows."""
    with served(data) as client:
        for each in windows("checkout", WINDOWS):
            assert client.push(each).status == 200
        client.until_indexed(WINDOWS)


def damage(data: Path) -> None:
    """Truncate a metadata file of the database, as ClickHouse does on a full disk."""
    next((data / "store").rglob("windows.sql")).write_bytes(b"")


def damaged_folders(data: Path) -> list[Path]:
    return list(data.glob("store.damaged-*"))


def log_lines(client: Served) -> list[dict[str, object]]:
    """End a server and return the lines of its log; the database itself writes others."""
    assert client.process is not None
    assert client.process.stderr is not None
    client.process.terminate()
    return [json.loads(line) for line in client.process.stderr.read().splitlines() if line.startswith("{")]


@pytest.mark.system
def test_truncated_database_is_set_aside_and_rebuilt_at_the_next_start(tmp_path: Path) -> None:
    fill(tmp_path)
    for _ in range(2):
        damage(tmp_path)
        with served(tmp_path, "--log", "json") as client:
            client.until_indexed(WINDOWS)
            lines = log_lines(client)
        (folder,) = damaged_folders(tmp_path)
        assert [line["folder"] for line in lines if line["event"] == "damaged database set aside"] == [str(folder)]
        time.sleep(1.1)  # the names have seconds


@pytest.mark.system
def test_health_has_store_rebuilding_until_all_files_are_indexed(tmp_path: Path) -> None:
    data, go = tmp_path / "data", tmp_path / "go"
    fill(data)
    damage(data)
    prefix = (sys.executable, "-c", SLOW_REBUILD.format(go=str(go)))
    with served(data, prefix=prefix) as client:
        while (answer := client.ask("/healthz")).status == 200:
            time.sleep(0.01)
        assert [each["reason"] for each in answer.json()["failures"]] == ["store_rebuilding"]
        assert 'failing{reason="store_rebuilding"} 1' in client.ask("/metrics").body.decode()
        go.touch()
        client.until_indexed(WINDOWS)
        while client.ask("/healthz").status != 200:
            time.sleep(0.01)


@pytest.mark.system
def test_rebuild_repairs_a_truncated_database(tmp_path: Path) -> None:
    fill(tmp_path)
    damage(tmp_path)
    command = [sys.executable, "-m", "pyprof", "server", "--data", str(tmp_path), "--rebuild"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{WINDOWS} segments of {tmp_path} are in the database\n"
    assert damaged_folders(tmp_path) == []
    with served(tmp_path) as client:
        client.until_indexed(WINDOWS)


@only_root
@pytest.mark.system
def test_server_on_a_full_disk_keeps_its_database_and_opens_it_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "20m") as disk:
        fill(disk)
        before = {path: path.read_bytes() for path in (disk / "store").rglob("*.sql")}
        others = disk / "others"
        room = os.statvfs(disk)
        others.write_bytes(bytes((room.f_bavail - 4) * room.f_bsize))
        with served(disk, "--log", "json") as client:
            while "disk_full" not in (found := client.ask("/healthz")).body.decode():
                assert found.status in (200, 503)
                time.sleep(0.01)
            assert {path: path.read_bytes() for path in (disk / "store").rglob("*.sql")} == before
            others.unlink()
            client.until_indexed(WINDOWS)
            while client.ask("/healthz").status != 200:
                time.sleep(0.01)
            lines = log_lines(client)
        assert "database not opened" in [line["event"] for line in lines]
        assert damaged_folders(disk) == []


def test_folder_that_another_process_uses_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "status").touch()
    command = [
        sys.executable,
        "-c",
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print()",
    ]
    command[-1] += "; sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen([*command, str(tmp_path / "status")], stdin=-1, stdout=-1) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StoreError, match="another process uses it"):
            local_database.delete(str(tmp_path))
        other.send_signal(signal.SIGKILL)
    assert (tmp_path / "status").exists()
