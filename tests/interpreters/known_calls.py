"""Recordings of programs that print their call graph: in each stack a caller really calls its callee."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from tests.collapsed import Stacks
from tests.interpreters.pythons import Python, running
from tests.interpreters.runs import count, functions, plain_name, record, seen, stacks

THREAD = ["_bootstrap", "_bootstrap_inner", "run"]
"""The root functions of a thread that is not the main thread."""


def met(found: Stacks, functions: set[str]) -> bool:
    """Return True if there are more than 50 samples and these functions are among them."""
    return count(found) > 50 and functions <= seen(found, "calls.py")


def read_callers(said: IO[str] | None) -> dict[str, set[str]]:
    """Read the callers of each function, which the program prints first."""
    assert said is not None
    return {name: set(calling) for name, calling in json.loads(said.readline()).items()}


def impossible(frames: list[str], file: str, callers: Mapping[str, Set[str]]) -> str:
    """Return what is wrong with the program's part of a stack, or "".

    A stack that is marked as truncated may lack its root functions.
    """
    names = functions(frames, file)
    for caller, callee in pairwise(names):
        if callee not in callers or caller not in callers[callee]:
            return f"{caller} does not call {callee}"
    if not names or frames[0].startswith("["):
        return ""
    outermost = [plain_name(frame) for frame in frames if frame.endswith(".py)")]
    first = names[0] == "<module>" == outermost[0]
    if first or (outermost[:3] == THREAD and "run" in callers.get(names[0], ())):
        return ""
    return f"it begins with {', '.join(outermost[:4])}"


def judge_parts(frames: list[str], file: str, callers: Mapping[str, Set[str]]) -> None:
    """Assert that adjacent functions of a stack call each other. The stack may lack functions."""
    for outer, inner in pairwise(frames):
        if outer.endswith(f"({file})") and inner.endswith(f"({file})"):
            caller, callee = functions([outer, inner], file)
            assert caller in callers[callee], frames


def record_calls(python: Python, folder: Path, *options: str, least: int = 0) -> tuple[dict[str, Any], int, int]:
    """Record calls.py until there are more than `least` samples, and judge every stack.

    Returns:
        (summary, number of samples, number of partially merged samples).
    """
    output = folder / "out.collapsed"
    with running(python, "calls.py", "1") as process:
        callers = read_callers(process.stdout)
        has_met = partial(met, functions={"leaf", "deep", "by_reduce", "by_callback"})

        def enough(found: Stacks) -> bool:
            return has_met(found) and count(found) > least

        summary = record(process.pid, output, "--native", "all", *options, until=enough)
    found = stacks(output)
    assert enough(found)
    for frames, _ in found:
        assert not impossible(frames, "calls.py", callers), frames
    return summary, count(found), sum(n for frames, n in found if any("merge: partial" in frame for frame in frames))
