"""Tests of samples of threads that exit: they have the stack with which the exit began."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import pyprof
from tests.warm import run

pytestmark = [pytest.mark.live, pytest.mark.system]

LARGE = """
import os
for _ in range(12):
    child = os.fork()
    if not child:
        memory = bytearray(256 << 20)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""A program whose children have much memory to give up when they exit."""


def test_samples_of_exiting_processes_have_the_stacks_of_their_exit_calls(tmp_path: Path) -> None:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release < (6, 16):
        pytest.skip("the kernel reports exits after the memory is gone")
    saved = tmp_path / "exits.pyprof"
    options = ("-r", "999", "--collector", "bpf", "--native", "all", "-o", str(saved))
    done = run("record", *options, "--", sys.executable, "-c", LARGE, timeout=120)
    assert saved.exists(), done
    profile = pyprof.load(str(saved))
    assert len(profile.filter(function="exit").stack) > 10
    assert profile.summary.ends.get("gone", 0) <= len(profile.stack) // 50
