"""Tests that the process of a server ends in time, whatever the interpreter and the database do."""

from __future__ import annotations

import signal
import sys
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
