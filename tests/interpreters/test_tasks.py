"""Tests of `--async`: the coroutines of the awaiting tasks stand above the running coroutine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreters.pythons import EACH, Python, running
from tests.interpreters.runs import dump, record, stacks

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

AWAITED = ["leaf", "inner", "helper", "middle"]


@EACH
def test_chain_of_tasks_stands_above_the_running_coroutine(python: Python) -> None:
    if python.minor < 11:
        return  # the program needs TaskGroup
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


@EACH
@pytest.mark.parametrize("collector", ["ptrace", "bpf"])
def test_recordings_have_the_same_chain(python: Python, collector: str, tmp_path: Path) -> None:
    if python.minor < 14:
        return
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
