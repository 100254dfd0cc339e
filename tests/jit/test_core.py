"""A test of core files of processes with JIT code: registrations are read from the core's memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.jit.programs_built import dyn
from tests.live.support.recording import dump, running
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]


def test_core_has_the_stack_that_the_live_process_has(tmp_path: Path) -> None:
    with running(dyn(tmp_path, "offset"), "spin") as program:
        os.kill(program.pid, signal.SIGSTOP)
        live = dump(program.pid)["threads"][0]
        subprocess.run(
            [need("gcore"), "-o", tmp_path / "core", str(program.pid)], check=True, capture_output=True, timeout=60
        )
    done = warm.run("dump", "--core", str(tmp_path / f"core.{program.pid}"), "--json")
    assert done.returncode == 0, done.stderr
    (dead,) = json.loads(done.stdout)["threads"]
    assert dead["end"] == live["end"] == "root"
    keys = ("pc", "function", "module", "trust")
    assert [[frame[key] for key in keys] for frame in dead["frames"]] == [
        [frame[key] for key in keys] for frame in live["frames"]
    ]
