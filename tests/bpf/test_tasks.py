"""Tests of `--async` with BPF: tasks that await the running task, in core files and recordings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from pyprof.model.interpreter_frames import Chain
from pyprof.model.profile import Profile
from pyprof.recording.reader import load_recording
from tests import warm
from tests.bpf.saved_process import SavedProcess
from tests.bpf.test_on_cores import agree, naps, saved
from tests.collapsed import Stacks
from tests.interpreters.known_calls import impossible, read_callers
from tests.interpreters.packages import from_pypi
from tests.interpreters.pythons import Python, pythons, running
from tests.interpreters.runs import count, functions, record, seen, stacks
from tests.support import name_of, pairs

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

PYTHONS = [python for python in pythons() if python.minor >= 14]
EACH = pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.name)
MOST_TASKS, MOST_COROUTINES = 32, 64
PROGRAM = "task_graph.py"
MAIN = ["<module>", "main"]
WAYS = {
    ("chain", 1): [*MAIN, "chain", "middle", "inner", "leaf", "spin"],
    ("chain", 2): [*MAIN, "chain", "middle", "inner", "leaf", "by_key", "spin"],
    ("gathering", 1): [*MAIN, "gathering", "one", "spin"],
    ("group", 2): [*MAIN, "group", "member", "spin"],
    ("both", 3): ["<module>", "shared", "spin"],
    ("remaining", 1): [*MAIN, "remaining", "last", "spin"],
    ("deep", 1): ["<module>", *["link"] * (1 + MOST_TASKS), "spin"],
    ("inward", 1): [*MAIN, *["inward"] * (MOST_COROUTINES - 1), "low", "spin"],
    ("waiting", 1): [*MAIN, "waiting", "patient", "spin"],
    ("shielding", 1): [*MAIN, "shielding", "kept", "spin"],
    ("circle", 1): ["<module>", "second", "first", "spin"],
}
"""Functions of the program from root to leaf, by (task, number of spin() calls).

Of a task's coroutines the outermost ones are read.
"""
BY_BPF = ("--async", "--collector", "bpf")


def of_program(process: SavedProcess, chain: Chain, program: str = PROGRAM) -> list[str]:
    """Return the unqualified names of the program's functions from root to leaf."""
    places = [place for run in chain.runs for place in run.frames]
    lines = [process.book.line(place) for place in places]
    return [str(line.function).rpartition(".")[2] for line in lines if str(line.file).endswith(program)][::-1]


@pytest.mark.parametrize(("python", "stand"), pairs(PYTHONS, list(WAYS)), ids=name_of)
def test_coroutines_of_awaiting_tasks_are_those_that_a_stop_finds(
    python: Python, stand: tuple[str, int], tmp_path: Path
) -> None:
    way, calls = stand
    with saved(python, tmp_path, naps, PROGRAM, way, f"--naps={calls}") as (process, _):
        assert process.needs == ""
        (chain,) = agree(process).values()
        found = of_program(process, chain)
    assert found == WAYS[stand]


@EACH
def test_coroutines_stand_above_that_of_a_task_that_waits_for_a_greenlet(python: Python, tmp_path: Path) -> None:
    copytree(from_pypi(python.minor, "greenlet", "gevent") / "greenlet", tmp_path / "greenlet")
    with saved(python, tmp_path, naps, "greenlet_tasks.py") as (process, _):
        (chain,) = agree(process).values()
        assert any(run.waits for run in chain.runs)
        assert of_program(process, chain, "greenlet_tasks.py") == ["<module>", "outer", "leaf", "between", "inside"]


def of_tasks(found: Stacks) -> Stacks:
    """Return the stacks whose leaf is the program's spin()."""
    return [(frames, n) for frames, n in found if functions(frames, PROGRAM)[-1:] == ["spin"]]


def met(found: Stacks) -> bool:
    """Return True if there are enough samples and every function of the program is among them."""
    ends = {name for names in WAYS.values() for name in names if name != "<module>"}
    return count(of_tasks(found)) > 300 and ends <= seen(found, PROGRAM)


def slept(found: Stacks) -> bool:
    return count(of_tasks(found)) > 50


MODES: dict[str, tuple[tuple[str, ...], Callable[[Stacks], bool]]] = {
    "cpu": ((), met),
    "offcpu": (("--naps=0", "chain"), slept),
}
"""Options of the program, and a condition on the recording, by mode."""


@pytest.mark.parametrize(("python", "mode"), pairs(PYTHONS, list(MODES)), ids=name_of)
def test_no_stack_of_a_recording_is_impossible_and_nothing_is_stopped(
    python: Python, mode: str, tmp_path: Path
) -> None:
    output, (options, enough) = tmp_path / "out.collapsed", MODES[mode]
    with running(python, PROGRAM, *options) as process:
        callers = read_callers(process.stdout)
        summary = record(process.pid, output, *BY_BPF, "--mode", mode, until=enough)
    found = stacks(output)
    assert enough(found), found
    for frames, _ in found:
        assert not impossible(frames, PROGRAM, callers), frames
    assert summary["stops"]["count"] == 0
    assert "never_stopped" in [note["reason"] for note in summary["notes"]]


LATE = """
import time
def early():
    while time.process_time() < 0.7: sum(range(1000))
early()
import asyncio
async def outer():
    await asyncio.create_task(inner())
async def inner():
    while time.process_time() < 2.7: sum(range(1000))
asyncio.run(outer())
"""


@pytest.mark.parametrize("python", PYTHONS[-1:], ids=name_of)
def test_tasks_are_followed_soon_after_asyncio_was_imported(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "out.pyprof"
    command = ("record", "-q", "-r", "400", "-o", str(output), *BY_BPF, "--", *python.command, "-c", LATE)
    done = warm.run(*command, timeout=120)
    assert done.returncode == 0, done.stderr
    profile = load_recording(str(output))
    stacks_by_time = [names_of(profile, int(node)) for node in profile.stack[np.argsort(profile.time_ns)]]
    assert sum("early" in names for names in stacks_by_time) > 50
    followed = ["outer" in names for names in stacks_by_time if "inner" in names]
    begin = followed.index(True)
    assert begin < 0.75 * len(followed) > 200, "followed while the program had half a second of processor time left"
    assert all(followed[begin:])
    assert profile.summary.stops.count == 0


def names_of(profile: Profile, node: int) -> set[str]:
    """Return the unqualified names of the functions of a stack."""
    return {frame.title.partition(" (")[0].rpartition(".")[2] for frame in profile.path(node)}
