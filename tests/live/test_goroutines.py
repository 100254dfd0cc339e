"""Recordings of a Go program with a known call graph whose threads leave the stacks of their goroutines.

It allocates, lets stacks grow, calls C, is called by C, and has more goroutines than processors.
"""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from pyprof import load
from pyprof.model.profile import Profile
from tests.live.support.recording import Recording, record, running
from tests.support import PROGRAMS, go_cache, need

pytestmark = [pytest.mark.live, pytest.mark.system]

CALLERS = {
    "main.loop": {"main.main.func1"},
    "main.work": {"main.loop"},
    "main.allocate": {"main.work", "main.grow", "main.calledBack"},
    "main.grown": {"main.work"},
    "main.grow": {"main.grow", "main.grown.func1"},
    "main.spin": {"main.work", "main.calledBack"},
    "main._Cfunc_c_outer.abi0": {"main.work", "main.calledBack"},
    "c_outer": {"main._Cfunc_c_outer.abi0"},
    "c_leaf": {"c_outer"},
    "main._Cfunc_c_calling.abi0": {"main.work"},
    "c_calling": {"main._Cfunc_c_calling.abi0"},
    "main.goCalled": {"c_calling", "main._Cfunc_c_calling.abi0"},
    "main.calledBack": {"main.goCalled"},
}
"""The possible callers of the program's functions. Between a call of C and a callback C's frames may be missing."""
FIRST = {"main.main.func1", "main.grown.func1", "main.main"}
"""Functions that nothing but Go's runtime calls."""
AWAY = ("runtime.systemstack.abi0", "runtime.asmcgocall.abi0", "runtime.morestack.abi0")
"""Functions of Go's runtime that leave the stack of a goroutine."""


def has_left_stacks(recording: Recording) -> bool:
    """Return True if each way to leave a goroutine's stack is met below a function of the program."""
    own = CALLERS.keys() | FIRST
    return recording.samples > 500 and all(
        any(away in stack and not own.isdisjoint(stack) for stack in recording.stacks) for away in AWAY
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go_stacks")
    need("gcc")
    command = [need("go"), "build", "-o", str(folder / "stacks"), "."]
    environment = {**os.environ, "GOCACHE": go_cache()}
    subprocess.run(command, check=True, env=environment, cwd=PROGRAMS / "go_stacks", timeout=600)
    return folder / "stacks"


@pytest.mark.parametrize("collector", ["bpf", "ptrace"])
def test_goroutines_are_whole_with_possible_callers_and_have_their_labels(
    program: Path, collector: str, tmp_path: Path
) -> None:
    with running(program) as process:
        options = ("--collector", collector, "--save", str(tmp_path / "kept.pyprof"))
        recording = record(process.pid, tmp_path, *options, seconds=1, rate=1999, until=has_left_stacks)
    assert has_left_stacks(recording)
    for stack in recording.stacks:
        own = [name for name in stack if name in CALLERS or name in FIRST]
        assert all(outer in CALLERS.get(inner, ()) for outer, inner in pairwise(own)), stack
        assert not own or own[0] in FIRST or stack[0].startswith("["), stack
    assert recording.whole > 0.99
    check_labels(load(tmp_path / "kept.pyprof"))


def check_labels(profile: Profile) -> None:
    """Check that samples have the label of the goroutine that ran: C calls only the one at place 0."""
    places = [dict(thread.labels).get("place", "") for thread in profile.threads]
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for leaf, thread in set(zip(profile.stack.tolist(), profile.thread.tolist(), strict=True)):
        names = {frame.title for frame in profile.path(leaf)}
        if "main.work" in names:
            found["main._Cfunc_c_calling.abi0" in names].add(places[thread])
    assert found == {False: {"0", "1", "2"}, True: {"0"}}
    assert len({thread.key for thread in profile.threads}) < len(profile.threads)
