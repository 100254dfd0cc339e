"""`--gil` keeps the samples of the holder: asked of a program whose C code says when it has given the GIL away."""

from __future__ import annotations

from pathlib import Path

from tests.interpreters.extensions import import_path
from tests.interpreters.pythons import KINDS, Python, running
from tests.interpreters.runs import record, stacks


def burning(frames: list[str], function: str) -> bool:
    """Is `burn` what this function of the extension does now?"""
    names = [frame.partition(".")[0] for frame in frames]
    return function in names and "burn" in names[names.index(function) :]


@KINDS
def test_thread_that_has_given_the_lock_away_is_not_its_holder(python: Python, tmp_path: Path) -> None:
    env = {"PYTHONPATH": import_path(python, numbers=False)[0]}
    everything, holders = tmp_path / "all.collapsed", tmp_path / "gil.collapsed"
    with running(python, "lock.py", env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        record(process.pid, everything)
        record(process.pid, holders, "--gil")
    count = {
        (path.stem, function): sum(n for frames, n in stacks(path) if burning(frames, function))
        for path in (everything, holders)
        for function in ("c_burns_with_lock", "c_burns_without_lock")
    }
    assert count["all", "c_burns_without_lock"] > 0
    assert count["all", "c_burns_with_lock"] > 0
    assert count["gil", "c_burns_with_lock"] > 0
    assert count["gil", "c_burns_without_lock"] == 0
