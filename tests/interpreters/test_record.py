"""Tests of busy programs with a known call graph: every sample is merged, and every caller really calls its callee."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreters.known_calls import record_calls
from tests.interpreters.pythons import HERE, KINDS, Python, running
from tests.interpreters.runs import record, stacks

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


@KINDS
def test_every_sample_is_merged_and_no_stack_is_impossible(python: Python, tmp_path: Path) -> None:
    summary, total, partly = record_calls(python, tmp_path)
    assert partly <= total // 200, summary["errors"]


def test_native_none_leaves_python_frames_only(tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    with running(HERE, "calls.py") as process:
        assert process.stdout is not None
        process.stdout.readline()
        record(process.pid, output, "--native", "none")
    found = stacks(output)
    whole = [frames for frames, _ in found if not frames[0].startswith("[merge: partial")]
    assert len(whole) > 0.9 * len(found)
    for frames in whole:
        assert all(frame.endswith(".py)") for frame in frames), frames


def test_threads_carry_the_names_that_python_gave_them(tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    with running(HERE, "calls.py", "1") as process:
        assert process.stdout is not None
        process.stdout.readline()
        record(process.pid, output, "--threads")
    roots = {frames[0].partition(" (")[0] for frames, _ in stacks(output)}
    assert "MainThread" in roots
    assert any(name.startswith("Thread-1") for name in roots)
