"""A test of a target whose JIT lists are corrupt and change constantly.

The recording ends, and static code is correct.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.support.recording import Recording, dump, record, running
from tests.support import build

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAMS = Path(__file__).parent / "programs"


def static_stacks(recording: Recording) -> dict[tuple[str, ...], int]:
    """Return the stacks that end in code of the program's own file, with their numbers of samples."""
    return {stack: n for stack, n in recording.stacks.items() if stack[-1] in ("honest", "lie", "any", "bad_number")}


def has_enough(recording: Recording) -> bool:
    static = static_stacks(recording)
    return sum(static.values()) > 30 and any(stack[-1] == "honest" for stack in static)


def test_lying_lists_neither_hang_nor_crash_and_static_stacks_stay_whole(tmp_path: Path) -> None:
    program = build(PROGRAMS / "hostile.c", tmp_path / "hostile", "-O1", "-g", "-pthread", "-fno-inline")
    with running(program) as process:
        recording = record(process.pid, tmp_path, seconds=0.8, until=has_enough)
        dump(process.pid, codes=(0, 3))
    static = static_stacks(recording)
    assert has_enough(recording), recording.stacks
    assert all(stack[0] in ("_start", "clone3") for stack in static), recording.stacks
    assert any(stack[-2:] == ("honest_caller", "honest") for stack in static)
    assert any("libunwind" in key or "gdb jit" in key for key in recording.summary["errors"])
    assert recording.summary["profiler"]["max_rss_kb"] < 1 << 20
