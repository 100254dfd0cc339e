"""Tests of the server's health checks and of the log lines about refused requests."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pyprof.errors import UsageError
from pyprof.fleet.cli.server import refusals
from pyprof.fleet.file_system_calls import Disk
from pyprof.fleet.server import start_and_shutdown
from pyprof.fleet.server.authorization import INTERVAL_S, STATUS, UNLOGGED, RefusalLog
from pyprof.fleet.server.config import ServerConfig
from pyprof.fleet.server.health_and_metrics import DISK_FULL, FAILURES, STORE_FAILED, ServerHealth
from pyprof.fleet.server.ingest.segment_files import SegmentFiles
from pyprof.fleet.server.store.clickhouse_engine import StoreError
from pyprof.lazy_dataclasses import replace
from tests.server.cluster import cluster
from tests.server.serving import free_port, served, windows
from tests.small_disk import only_root, small_disk

pytestmark = pytest.mark.system

Line = tuple[str, str, dict[str, object]]


class Log:
    """A logger that stores its lines."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def __call__(self, level: str, event: str, **fields: object) -> None:
        self.lines.append((level, event, fields))


def test_failed_check_is_logged_once_until_it_passes() -> None:
    log, broken = Log(), [True]

    def check() -> None:
        if broken[0]:
            raise StoreError("127.0.0.1:8123 does not answer")

    health = ServerHealth({STORE_FAILED: check, DISK_FULL: lambda: None}, log)
    assert not health.is_checked
    for _ in range(3):
        health.check_now()
    assert health.is_checked
    assert health.failures == {STORE_FAILED: "127.0.0.1:8123 does not answer"}
    broken[0] = False
    health.check_now()
    assert health.failures == {}
    assert [(level, event) for level, event, _ in log.lines] == [("error", "unhealthy"), ("info", "healthy again")]


def test_check_that_fails_in_an_unexpected_way_is_a_failure() -> None:
    health = ServerHealth({STORE_FAILED: lambda: [][0]}, Log())
    health.check_now()
    assert health.failures == {STORE_FAILED: "IndexError: list index out of range"}


def test_check_that_hangs_is_a_failure_and_delays_no_other_check(monkeypatch: pytest.MonkeyPatch) -> None:
    log, hangs, passed, ended = Log(), threading.Event(), threading.Event(), threading.Event()

    def check() -> None:
        hangs.wait(60)
        ended.set()

    health = ServerHealth({DISK_FULL: check, STORE_FAILED: passed.set}, log)
    monkeypatch.setattr("pyprof.fleet.server.health_and_metrics.MAX_CHECK_S", 0.0)
    health.start()
    try:
        assert passed.wait(60)
        while not health.failures:
            time.sleep(0.01)
        assert not health.is_checked
        assert health.failures[DISK_FULL].startswith("The check has not ended for ")
        assert [(event, fields["reason"]) for _, event, fields in log.lines] == [("unhealthy", DISK_FULL)]
    finally:
        hangs.set()
        health.close()
    assert ended.wait(60)
    while health.failures:
        time.sleep(0.01)
    assert health.is_checked


def test_database_that_stands_still_is_named_and_lets_no_question_wait(tmp_path: Path) -> None:
    """Stop both ClickHouse servers while a query comes, and continue them."""
    nodes: list[subprocess.Popen[bytes]] = []
    config = tmp_path / "server.toml"
    with cluster(tmp_path / "cluster", nodes) as url:
        config.write_text(f'[server]\nstore = "{url}"\n')
        with served(tmp_path / "data", "--config", str(config)) as client:
            while client.ask("/readyz").status != 200:
                time.sleep(0.01)
            for node in nodes:
                node.send_signal(signal.SIGSTOP)
            (pushed,) = windows("checkout", 1)
            assert client.push(pushed).status == 200, "it is stored at once, and in the database later"
            for _ in range(2):
                answer = client.question("services")
                assert (answer.status, answer.json()["reason"]) == (503, STORE_FAILED)
                assert "has not answered" in answer.json()["error"]
            ready = client.ask("/readyz")
            assert ready.status == 503
            assert STORE_FAILED in [each["reason"] for each in ready.json()["failures"]]
            for node in nodes:
                node.send_signal(signal.SIGCONT)
            client.until_indexed(1)
            while client.ask("/readyz").status != 200:
                time.sleep(0.05)


def test_lines_of_libraries_have_the_form_of_the_servers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for name in ("uvicorn", "uvicorn.error"):  # another test of this process may have configured uvicorn otherwise
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
    log = Log()
    start_and_shutdown._server(ServerConfig(), None, lambda: None, log)
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).error("Invalid HTTP request of %s", "x")
    said = [
        ("error", "library message", {"logger": name, "message": "Invalid HTTP request of x"})
        for name in ("uvicorn.error", "asyncio")
    ]
    assert log.lines == said


def test_port_in_use_is_reported_before_anything_is_created_or_said(tmp_path: Path) -> None:
    log, data = Log(), tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = replace(ServerConfig(), port=other.getsockname()[1], data=str(data))
        with pytest.raises(UsageError, match=f"127.0.0.1:{config.port} cannot be opened: Address already in use"):
            start_and_shutdown.serve(config, log, lambda end, reload: None, lambda: config)
    assert not data.exists()
    assert log.lines == []


def test_port_that_another_process_took_after_the_bind_is_reported_to_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    async def app(scope: object, receive: Callable[[], Awaitable[object]], send: object) -> None:
        await receive()

    config = replace(ServerConfig(), port=free_port())
    server = start_and_shutdown._server(config, app, lambda: pytest.fail("it does not listen"), Log())
    with (
        start_and_shutdown.bound_sockets(config) as sockets,
        socket.create_server(("127.0.0.1", config.port)),
        pytest.raises(UsageError, match=f"127.0.0.1:{config.port} cannot be opened"),
    ):
        start_and_shutdown.run_http(server, sockets, config)


def test_invalid_requests_are_one_line_a_minute() -> None:
    log, now = Log(), [0.0]
    handler = start_and_shutdown._LogHandler(log, lambda: now[0])
    record = logging.LogRecord(
        "uvicorn.error", logging.WARNING, "http.py", 1, "Invalid HTTP request of %s", ("x",), None
    )
    for _ in range(5):
        handler.handle(record)
    now[0] = INTERVAL_S
    handler.handle(record)
    assert [fields.get("unlogged_before", 0) for _, _, fields in log.lines] == [0, 4]


def test_each_failure_is_a_reason_with_a_status() -> None:
    assert set(FAILURES) <= STATUS.keys()
    assert STATUS.keys() >= UNLOGGED


def test_each_refusal_is_printed_with_its_status_and_what_helps() -> None:
    said = list(refusals())
    assert {f"{reason} ({status})" for reason, status in STATUS.items()} <= set(said)
    at = said.index("files_missing (/healthz 200)")
    assert said[at + 2].startswith("  hint: find out what removed them")


def test_refusals_of_one_reason_are_one_line_a_minute() -> None:
    log, now = Log(), [0.0]
    refusals = RefusalLog(log, lambda: now[0])
    for _ in range(5):
        refusals.note_refusal("too_many_requests", "more than 500 segments in a second", "10.0.0.1")
    now[0] = INTERVAL_S
    refusals.note_refusal("too_many_requests", "more than 500 segments in a second", "10.0.0.1")
    assert [fields.get("unlogged_before", 0) for _, _, fields in log.lines] == [0, 4]


def test_wrong_tokens_are_logged_for_each_client_within_bounds() -> None:
    log = Log()
    refusals = RefusalLog(log, lambda: 0.0)
    for number in range(10_000):
        refusals.note_refusal("wrong_token", "No tenant has this token.", f"10.0.{number // 256}.{number % 256}")
    assert log.lines[0][2]["client"] == "10.0.0.0"
    assert 200 < len(log.lines) < 300


def test_what_only_the_client_needs_to_know_is_not_logged() -> None:
    log = Log()
    for reason in UNLOGGED:
        RefusalLog(log).note_refusal(reason, "", "10.0.0.1")
    assert log.lines == []


@only_root
def test_full_disk_turns_health_red_and_room_turns_it_green(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "20m") as disk, served(disk, "--log", "json") as client:
        while client.ask("/readyz").status != 200:
            time.sleep(0.01)
        others = disk / "others"
        room = os.statvfs(disk)
        others.write_bytes(bytes((room.f_bavail - 4) * room.f_bsize))
        while (answer := client.ask("/healthz")).status == 200:
            time.sleep(0.01)
        (failure,) = (each for each in answer.json()["failures"] if each["reason"] == DISK_FULL)
        assert failure["error"] == f"{disk}/segments: No space left on device"
        assert failure["hint"].startswith("free space on the server's disk")
        assert f'pyprof_server_failing{{reason="{DISK_FULL}"}} 1' in client.ask("/metrics").body.decode()
        others.unlink()
        while client.ask("/healthz").status != 200:
            time.sleep(0.01)
        assert client.process is not None
        assert client.process.stderr is not None
        client.process.terminate()
        lines = [json.loads(line) for line in client.process.stderr.read().splitlines()]
    said = [line for line in lines if line.get("reason") == DISK_FULL]
    assert [line["event"] for line in said] == ["unhealthy", "healthy again"]
    assert (said[0]["error"], said[0]["hint"]) == (failure["error"], failure["hint"])


def test_folder_that_takes_no_files_for_its_rights_is_not_called_full(tmp_path: Path) -> None:
    log = Log()
    files = SegmentFiles(str(tmp_path / "segments"), ReadOnly())
    health = ServerHealth({DISK_FULL: lambda: start_and_shutdown.check_folder(files)}, log)
    health.check_now()
    files.close()
    assert health.failures == {DISK_FULL: f"{tmp_path}/segments: Read-only file system"}
    assert health.hint(DISK_FULL) == f"check the disk and the rights of {tmp_path}/segments"
    assert log.lines[0][2]["hint"] == health.hint(DISK_FULL)


class ReadOnly(Disk):
    """A disk that takes no new file."""

    def create(self, path: str) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_refused_window_is_logged_with_its_reason_and_client(tmp_path: Path) -> None:
    with served(tmp_path, "--log", "json") as client:
        (window,) = windows("checkout", 1)
        name = window.name
        answer = client.ask(f"/api/v1/segments/{name.day}/bad%00name/{name.name}", window.data)
        assert (answer.status, answer.json()["reason"]) == (422, "wrong_name")
        assert "control characters" in answer.json()["error"]
        assert client.process is not None
        assert client.process.stderr is not None
        client.process.terminate()
        lines = [json.loads(line) for line in client.process.stderr.read().splitlines()]
    (line,) = (line for line in lines if line["event"] == "request refused")
    assert (line["reason"], line["client"]) == ("wrong_name", "127.0.0.1")
