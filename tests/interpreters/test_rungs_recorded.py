"""Tests of recordings of dozens of ways to call Python from native code: all samples are merged correctly."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.collapsed import Stacks
from tests.interpreters.pythons import OLDEST_AND_NEWEST, Python
from tests.interpreters.runs import count, record, seen, stacks
from tests.interpreters.test_rungs import SEED, climbing

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

FILE = " (rungs.py)"


def plain(frame: str) -> str:
    """Return the name of a Python frame as the program reports it."""
    return frame.removesuffix(FILE).rpartition(".")[2]


def check(frames: list[str], truth: dict[str, Any]) -> None:
    """Assert that the frames, from root to leaf, agree with the program's call graph."""
    ours = [at for at, frame in enumerate(frames) if frame.endswith(FILE)]
    if len(ours) > 1 and ours[-1] == ours[-2] + 1 and frames[ours[-1]].removesuffix(FILE) in truth["makers"]:
        ours.pop()  # the call returns a generator, whose body runs elsewhere
    calls = {(caller, callee) for caller, callee in truth["calls"]}
    for outer, inner in pairwise(ours):
        assert (plain(frames[outer]), plain(frames[inner])) in calls, frames
    for at in ours:
        claims = truth["through"].get(plain(frames[at]), ())
        claims = [claim for claim in claims if not claim.startswith("module:")]  # collapsed stacks have no modules
        if claims:
            inside = next((n for n in ours if n > at and plain(frames[n]) == "inside"), None)
            if inside is not None:
                between = [frame for frame in frames[at + 1 : inside] if not frame.endswith(".py)")]
                found = iter(between)
                assert all(any(claim in name for name in found) for claim in claims), (claims, frames[at : inside + 1])


@OLDEST_AND_NEWEST
def test_every_sample_is_merged_and_no_stack_is_impossible(python: Python, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    with climbing(python, str(SEED), "6", "busy", "1") as process:
        assert process.stdout is not None
        truth = json.loads(process.stdout.readline())

        def enough(found: Stacks) -> bool:
            """Return True if more than half of the ways occur."""
            ways = set(truth["through"])
            return count(found) > 100 and len(seen(found, "rungs.py") & ways) > len(ways) // 2

        summary = record(process.pid, output, "--native", "all", "-i", until=enough)
        assert process.poll() is None
    found = stacks(output)
    assert enough(found)
    total = count(found)
    partial = [(n, frames) for frames, n in found if is_partial(frames)]
    assert len(partial) <= 1 or sum(n for n, _ in partial) <= total // 1000, (partial, total, summary["errors"])
    for frames, _ in found:
        if not is_partial(frames):
            check(frames, truth)


def is_partial(frames: list[str]) -> bool:
    """Return True if the stack is marked as partially merged."""
    return any("merge: partial" in frame for frame in frames)
