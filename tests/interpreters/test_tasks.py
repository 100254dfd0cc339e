"""Tests of `--async`: the coroutines of the awaiting tasks stand above the running coroutine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreters.pythons import Python, pythons, running
from tests.interpreters.runs import dump, record, stacks
from tests.support import name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

AWAITED = ["leaf", "inner", "helper", "middle"]


@pytest.mark.parametrize("python", [p for p in pythons() if p.minor >= 11], ids=name_of)
def test_chain_of_tasks_stands_above_the_running_coroutine(python: Python) -> None:
    """The program needs TaskGroup of CPython 3.11."""
    with running(python, "tasks.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (thread,) = dump(process.pid, "--async")["threads"]
    names = [frame["function"] for frame in thread["frames"] if frame["kind"] == "python"]
    assert names[:2] == AWAITED[:2]
    if python.minor < 14:
        assert names[2] == "Handle._run", "earlier versions do not say which task awaits which"
        return
    assert names[:4] == AWAITED
    assert names.index("outer") < names.index("main") < names.index("Handle._run")
    assert thread["interpreter"]["merge"] is None


WITH_AWAITERS = [python for python in pythons() if python.minor >= 14]


@pytest.mark.parametrize(("python", "collector"), pairs(WITH_AWAITERS, ["ptrace", "bpf"]), ids=name_of)
def test_recordings_have_the_same_chain(python: Python, collector: str, tmp_path: Path) -> None:
    with running(python, "tasks.py") as process:
        assert process.stdout is not None
        process.stdout.readline()
        summary = record(process.pid, tmp_path / "out.collapsed", "--async", "--collector", collector)
    assert (summary["stops"]["count"] == 0) == (collector == "bpf")
    found = [frames for frames, _ in stacks(tmp_path / "out.collapsed")]
    assert found
    for frames in found:
        names = [frame.partition(" (")[0] for frame in frames if frame.endswith("(tasks.py)")]
        assert names[:3] == ["<module>", "main", "outer"]
        assert [name for name in names if name in AWAITED] == list(reversed(AWAITED))
