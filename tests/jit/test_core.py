"""A test of core files of processes with JIT code: registrations are read from the core's memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.jit.java_ladder import compile_ladder, ladder
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


def test_core_of_a_java_process_has_the_frames_of_the_live_process(tmp_path: Path) -> None:
    """Compare the threads whose stacks are whole in the live process: those that sleep are read there without a
    stop, and lack registers that a core has.
    """
    with ladder(compile_ladder(tmp_path), "-Xmx64m", "-XX:TieredStopAtLevel=1") as pid:
        live: dict[int, list[str]] = {}
        while not any("Ladder.main" in frames for frames in live.values()):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGSTOP)
            live = whole_stacks(dump(pid, codes=(0, 3)))
        command = [need("gcore"), "-o", str(tmp_path / "core"), str(pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=100)
    done = warm.run("dump", "--core", str(tmp_path / f"core.{pid}"), "--json", "--native", "all")
    assert done.returncode in (0, 3), done.stderr
    dead = whole_stacks(json.loads(done.stdout))
    assert {tid: dead.get(tid) for tid in live} == live


def whole_stacks(found: dict[str, Any]) -> dict[int, list[str]]:
    """Return the functions of each thread whose stack is whole."""
    threads = [thread for thread in found["threads"] if thread["end"] == "root"]
    return {thread["tid"]: [frame["function"] for frame in thread["frames"]] for thread in threads}
