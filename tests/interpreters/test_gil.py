"""Tests of `--gil`, which keeps samples of the GIL's holder.

The recorded program reports when its C code releases the GIL.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.collapsed import Stacks
from tests.interpreters.extensions import import_path
from tests.interpreters.pythons import OF_LAYOUTS, Python, running
from tests.interpreters.runs import record, stacks
from tests.support import PROGRAMS, build

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


def burning(frames: list[str], function: str) -> bool:
    """Return True if this function of the extension is in `burn`."""
    names = [frame.partition(".")[0] for frame in frames]
    return function in names and "burn" in names[names.index(function) :]


def burned(found: Stacks) -> tuple[int, int]:
    """Return the number of samples that burn with the GIL and without it."""
    with_lock, without = (
        sum(n for frames, n in found if burning(frames, function))
        for function in ("c_burns_with_lock", "c_burns_without_lock")
    )
    return with_lock, without


@pytest.mark.parametrize("python", [p for p in OF_LAYOUTS if p.minor in (8, 12, 15)], ids=lambda python: python.name)
def test_thread_that_has_given_the_lock_away_is_not_its_holder(python: Python, tmp_path: Path) -> None:
    env = {"PYTHONPATH": import_path(python, numbers=False)[0]}
    everything, holders = tmp_path / "all.collapsed", tmp_path / "gil.collapsed"
    with running(python, "lock.py", env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        record(process.pid, everything, until=lambda found: min(burned(found)) > 0)
        summary = record(process.pid, holders, "--gil", until=lambda found: burned(found)[0] > 10)
    assert min(burned(stacks(everything))) > 0
    with_lock, without = burned(stacks(holders))
    assert with_lock > 10
    assert without == 0
    assert any("held the GIL" in note["text"] for note in summary["notes"])


def test_gil_where_there_is_no_cpython_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    program = build(PROGRAMS / "c_spin.c", tmp_path / "spinner", "-pthread")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        summary = record(process.pid, tmp_path / "a.collapsed", "--gil")
        process.kill()
    notes = {note["reason"]: note["arguments"] for note in summary["notes"]}
    assert "no_lock_seen" in notes
    assert notes["not_holding_lock"]["held"] == 0 < notes["not_holding_lock"]["all"]
