"""Tests of an agent whose spool is on a full disk: it keeps running and reports the segments that it deletes."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from pyprof.fleet.file_system_calls import has_room
from tests.agent.test_agent_live import BUSY
from tests.server.serving import free_port
from tests.small_disk import fill, only_root, small_disk
from tests.warm import run

CONFIG = '[windows]\nevery = "1s"\n[[rule]]\ncmdline = "WORD"\nservice = "checkout"\n'

pytestmark = [pytest.mark.live, pytest.mark.system, only_root]


def until(so: Callable[[], bool], agent: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + 120
    while not so():
        assert agent.poll() is None, log.read_text()
        assert time.monotonic() < give_up, log.read_text()
        time.sleep(0.05)


def failing(port: int) -> set[str]:
    """Return the reasons of the conditions that /healthz names."""
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
        return {each["reason"] for each in json.loads(answer.read())["failures"]}


def test_oldest_segments_make_room_and_new_ones_are_whole(tmp_path: Path) -> None:
    port = free_port()
    word, log, config = f"agent-full-{os.getpid()}", tmp_path / "log", tmp_path / "agent.toml"
    config.write_text(f"[http]\nport = {port}\n{CONFIG.replace('WORD', word)}")
    config.chmod(0o600)
    spool = tmp_path / "disk" / "spool"
    command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(spool), "--log", "json"]

    def segments() -> list[Path]:
        return sorted(path for path in spool.rglob("*.pb.gz") if not path.name.startswith("."))

    with small_disk(tmp_path / "disk", "128k") as disk, log.open("wb") as out:
        target = subprocess.Popen([sys.executable, "-c", BUSY, word], stdout=subprocess.DEVNULL)
        agent = subprocess.Popen(command, stderr=out)
        try:
            until(lambda: len(segments()) >= 4, agent, log)
            fill(disk)
            first = segments()[0]
            until(lambda: "segment_dropped_disk_full" in log.read_text() and not first.exists(), agent, log)
            until(lambda: "spool_disk_full" in failing(port), agent, log)
            assert "spool_disk_full" in log.read_text()
            newest = segments()[-1]
            until(lambda: segments()[-1].name > newest.name, agent, log)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0, log.read_text()
            assert all(gzip.decompress(path.read_bytes()) for path in segments())
            assert not list(spool.rglob("*.part"))
            assert "checkout" in run("agent", "status", "--spool", str(spool)).stdout
        finally:
            for each in (agent, target):
                each.kill()
                each.wait()


def test_agent_that_starts_on_a_full_disk_is_degraded_at_once(tmp_path: Path) -> None:
    port = free_port()
    log, config, spool = tmp_path / "log", tmp_path / "agent.toml", tmp_path / "disk" / "spool"
    config.write_text(f"[http]\nport = {port}\n{CONFIG.replace('WORD', f'no-process-{os.getpid()}')}")
    config.chmod(0o600)
    command = [sys.executable, "-m", "pyprof", "agent", "--config", str(config), "--spool", str(spool), "--log", "json"]
    with small_disk(tmp_path / "disk", "128k") as disk, log.open("wb") as out:
        (spool / "kept").mkdir(parents=True)
        fill(disk)
        agent = subprocess.Popen(command, stderr=out)
        try:
            until(lambda: '"started"' in log.read_text(), agent, log)
            assert failing(port) == {"spool_disk_full"}
        finally:
            agent.kill()
            agent.wait()


def test_disk_has_room_again_when_other_files_are_gone(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        assert has_room(str(disk))
        (disk / "others").write_bytes(bytes(3 << 20))
        assert not has_room(str(disk)), "a mebibyte less the folder"
        (disk / "others").unlink()
        assert has_room(str(disk))
    assert not has_room(str(tmp_path / "none"))
