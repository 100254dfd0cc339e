"""Tests of programs with five thousand executable mappings, and with ever more of them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

import pyprof
from pyprof.model.profile import Profile
from tests.cli.support import BUSY, PYPROF, python
from tests.live.support.recording import running
from tests.support import PROGRAMS, build, pairs

pytestmark = [pytest.mark.live, pytest.mark.fuzz, pytest.mark.system]

HANGS_S = 100
"""Timeout in seconds, which only quadratic cost in the number of mappings exceeds."""
ENOUGH = 10
"""Number of complete stacks of the other process to wait for."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROGRAMS / "c_many_mappings.c", tmp_path_factory.mktemp("mappings") / "c_many_mappings", "-O1")


@pytest.mark.parametrize(("making", "collector"), pairs([[], ["anew"]], ["auto", "ptrace"]))
def test_it_is_recorded(program: Path, making: list[str], collector: str, tmp_path: Path) -> None:
    out = tmp_path / "a.collapsed"
    with running(program, *making) as target:
        for seconds in ("2", "8", "32"):  # until the program ran, on a busy machine
            command = [*PYPROF, "record", "-d", seconds, "-p", str(target.pid), "--collector", collector]
            done = subprocess.run([*command, "-o", str(out)], stderr=subprocess.PIPE, text=True, timeout=HANGS_S)
            assert target.poll() is None
            if out.exists() and "main" in out.read_text():
                break
    assert done.returncode == 0, done.stderr
    assert "main" in out.read_text()


@pytest.mark.parametrize("collector", ["auto", "ptrace"])
def test_process_with_64000_mappings_leaves_others_whole(collector: str, tmp_path: Path) -> None:
    crowded = build(PROGRAMS / "c_many_mappings.c", tmp_path / "crowded", "-O1", "-DMANY=32000")
    with running(crowded) as hostile, python(BUSY) as harmless:
        targets = pyprof.TargetOptions(pids=(hostile.pid, harmless.pid))
        with pyprof.attach(targets, collector=collector) as recording:
            while whole_stacks(harmless.pid, profile := recording.peek()) < ENOUGH:
                assert recording.running
                time.sleep(0.1)
    assert f"too_many_mappings:{hostile.pid}" in profile.summary.errors


def whole_stacks(pid: int, profile: Profile) -> int:
    """Return the number of samples of a process whose stacks reach its first function."""
    nodes = profile.stack[[profile.threads[thread].pid == pid for thread in profile.thread.tolist()]]
    return sum(profile.path(node)[0].title == "_start" for node in nodes.tolist())
