"""Tests that the process of a server ends in time, whatever the interpreter and the database do."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.server.serving import PATIENCE_S, served

pytestmark = pytest.mark.system

PATCHED = """
import atexit, ctypes, sys, time
from pyprof.fleet.cli import server
from pyprof.fleet.server.store.database import Store
{patch}
sys.argv[:] = sys.argv[3:]
from pyprof.__main__ import main
main()
"""
"""A program that changes a part of pyprof, and then runs the command `python -m pyprof ...` that follows it."""
HANGING_EXIT = "atexit.register(time.sleep, 3600)"
CHECK_AT_EXIT = """
QUERY = "SELECT sum(sleepEachRow(0.5)) FROM numbers(4) SETTINGS max_block_size = 1"
Store.check = lambda self: self._engine.rows(QUERY)
"""
"""A health check that is in a query of chdb when the server ends."""
CLOSE_WITH_GIL = """
server._MAX_S = 1.0
Store.close = lambda self: ctypes.PyDLL(None).pause()
"""
"""A database that never closes, and keeps the GIL meanwhile."""


@pytest.mark.parametrize(
    ("patch", "code"),
    [(HANGING_EXIT, 0), (CHECK_AT_EXIT, 0), (CLOSE_WITH_GIL, -signal.SIGALRM)],
    ids=["hanging_exit", "check_at_exit", "close_with_gil"],
)
def test_process_ends_after_a_signal(tmp_path: Path, patch: str, code: int) -> None:
    with served(tmp_path / "data", prefix=(sys.executable, "-c", PATCHED.format(patch=patch))) as client:
        assert client.process is not None
        client.process.terminate()
        assert client.process.wait(PATIENCE_S) == code


def test_sighup_reads_the_tokens_again_and_does_not_end_the_server(tmp_path: Path) -> None:
    token, config = tmp_path / "read.token", tmp_path / "server.toml"
    config.write_text(f'[[tenant]]\nname = "a"\nread_token_file = "{token}"\n')

    def write(text: str) -> None:
        token.write_text(text)
        token.chmod(0o600)

    write("first-token-of-the-tenant")
    with served(tmp_path / "data", "--config", str(config), token=token.read_text()) as client:
        assert client.process is not None
        assert client.question("services").status == 200
        write("second-token-of-the-tenant")
        client.process.send_signal(signal.SIGHUP)
        while client.question("services").status == 200:
            time.sleep(0.01)
        client.token = token.read_text()
        assert client.question("services").status == 200
        token.write_text("short")
        client.process.send_signal(signal.SIGHUP)
        assert client.process.stderr is not None
        line = ""
        while "reload failed" not in line:
            line = client.process.stderr.readline()
        assert "less than 16 letters" in line
        health = client.ask("/healthz")
        assert health.status == 200, "the tokens before are in use"
        (failure,) = health.json()["failures"]
        assert failure["reason"] == "reload_failed"
        assert "less than 16 letters" in failure["error"]
        assert "pyprof_server_reload_success 0\n" in client.ask("/metrics").body.decode()
        config.write_text("")
        client.process.send_signal(signal.SIGHUP)
        while "reload failed" not in (line := client.process.stderr.readline()):
            pass
        assert "the last one removed" in line
        assert client.question("services").status == 200
        config.write_text(f'[[tenant]]\nname = "a"\nread_token_file = "{token}"\n')
        write("second-token-of-the-tenant")
        client.process.send_signal(signal.SIGHUP)
        while client.ask("/healthz").body != b"ok\n":
            time.sleep(0.01)
        assert "pyprof_server_reload_success 1\n" in client.ask("/metrics").body.decode()
