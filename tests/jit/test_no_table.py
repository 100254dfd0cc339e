"""Tests of JIT code without any description: frame pointers, and heuristics if they are enabled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pyprof.model.unwind_result import Trust
from tests import warm
from tests.jit.programs_built import dyn
from tests.live.support.recording import record, running
from tests.support import build, need

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAMS = Path(__file__).parent / "programs"


def test_stack_scan_leads_through_luajit_traces_and_never_counts_as_whole(tmp_path: Path) -> None:
    """Scan the stack for the caller of a LuaJIT trace, which has no frame, table or name."""
    with running(need("luajit"), PROGRAMS / "work.lua") as program:
        without = record(program.pid, tmp_path)
        guessed = record(program.pid, tmp_path, "--scan")
    assert without.whole < 0.3
    assert "scan" not in without.summary["trust"]
    assert guessed.whole < 0.3
    assert guessed.summary["trust"][Trust.SCAN.label] > 0.7 * guessed.samples
    found = sum(n for stack, n in guessed.stacks.items() if "_start" in stack[:2] and "main" in stack)
    assert found > 0.95 * guessed.samples


def test_pushed_return_address_is_followed_if_frame_pointers_lead_to_a_call(tmp_path: Path) -> None:
    """Push a return address and jump, as HotSpot's interpreter does."""
    program = build(PROGRAMS / "pushed_return.c", tmp_path / "pushed", "-O1", "-g")
    with running(program) as process:
        recording = record(process.pid, tmp_path, "--full-paths", until=lambda recording: recording.samples > 100)
    assert recording.whole > 0.99
    inside = {stack: n for stack, n in recording.stacks.items() if stack[-1] == "[JIT code of pushed]"}
    assert sum(inside.values()) > 50
    assert {stack[-4] for stack in inside if stack[-3] == "[JIT code of pushed]"} <= {"enter"}, recording.stacks


def test_doctor_lists_registered_code(tmp_path: Path) -> None:
    with running(dyn(tmp_path, "offset"), "spin") as program:
        done = warm.run("doctor", str(program.pid))
    assert "[jit] libunwind: 15 pieces of code" in done.stdout
    assert "by_directives" in done.stdout
    assert done.stderr == ""
    assert sys.executable
