"""A test of expensive unwind rules: a stack costs a bounded amount and is truncated, and its file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.unwind.dwarf_expressions import PER_STACK
from tests.live.support.recording import record, running
from tests.support import PROGRAMS, build

pytestmark = [pytest.mark.live, pytest.mark.fuzz, pytest.mark.system]

OPERATIONS = 6_901
"""Number of DWARF operations for computing the CFA of a frame."""


def test_work_is_bounded_by_stack_and_the_file_is_named(tmp_path: Path) -> None:
    program = build(PROGRAMS / "dear_rules.S", tmp_path / "dear_rules")
    with running(program) as process:
        recording = record(process.pid, tmp_path, "--mode", "wall", seconds=0.5)
    (stack,) = recording.stacks
    assert stack[0] == "[truncated: no unwind rule]"
    assert stack.count("dear") == PER_STACK // OPERATIONS + 1
    assert "main" not in stack
    assert recording.summary["errors"]["unwind_rules_too_costly"] > 0
    (module,) = (module for module in recording.summary["modules"] if module["path"] == str(program))
    assert any("need too much computation" in problem["text"] for problem in module["problems"])
