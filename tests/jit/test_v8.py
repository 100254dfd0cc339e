"""Tests of running JavaScript programs: names without options, in the interpreter and in the code of each compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.support.recording import Recording, record, running
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAM = Path(__file__).parent / "programs" / "ladder.js"
CALLS = {
    "main": {"all", "later"},
    "all": {"recurse", "catcher", "virtual", "closures", "allocate", "sort", "map", "replace"},
    "recurse": {"recurse", "three"},
    "three": {"two"},
    "two": {"one", "spin"},
    "catcher": {"thrower", "spin"},
    "virtual": {"area", "surface"},
    "closures": {"closure", "makeClosure"},
    "allocate": {"closure", "spin"},
    "sort": {"compare"},
    "map": {"mapped"},
    "replace": {"replaced"},
    "later": {"resumed"},
    **{name: {"spin"} for name in ("one", "thrower", "area", "surface", "closure", "compare", "mapped", "replaced")},
    "resumed": {"spin"},
}
"""The functions of the program that each of them calls, directly or through functions of V8."""
MODES = {
    "interpreted": ("--no-opt", "--no-sparkplug"),
    "baseline": ("--no-opt", "--always-sparkplug"),
    "tiered": (),
}

NEEDED = {"recurse", "compare", "replaced", "closure", "area"}
"""Functions of which each recording must have samples."""


def own(stack: tuple[str, ...]) -> list[str]:
    """Return the functions of the program in a stack from root to leaf."""
    names = (frame.partition(" / ")[0] for frame in stack)
    return [name for name in names if name in CALLS or name == "spin"]


def has_all_functions(recording: Recording) -> bool:
    leaves = sum(n for stack, n in recording.stacks.items() if own(stack)[-1:] == ["spin"])
    return leaves > 50 and {name for stack in recording.stacks for name in own(stack)} >= NEEDED


@pytest.mark.parametrize("mode", MODES)
def test_javascript_frames_are_named_and_have_no_impossible_caller(tmp_path: Path, mode: str) -> None:
    with running(need("node"), *MODES[mode], PROGRAM) as process:
        recording = record(process.pid, tmp_path, "--collector", "auto", seconds=1, rate=999, until=has_all_functions)
    stacks = recording.stacks
    pairs = [pair for stack in stacks for pair in zip(own(stack), own(stack)[1:], strict=False)]
    assert [pair for pair in pairs if pair[1] not in CALLS.get(pair[0], set())] == []
    assert {own(stack)[0] for stack in stacks if own(stack)} <= {"main", "later"}
    assert {name for stack in stacks for name in own(stack)} >= NEEDED
    unnamed = [n for stack, n in stacks.items() if any(has_no_name(frame) for frame in stack)]
    assert sum(unnamed) < 0.02 * recording.samples


def has_no_name(frame: str) -> bool:
    return frame.startswith(("[unknown]", "[JIT code", "Builtins_InterpreterEntryTrampoline"))
