"""Recordings of programs/calls.py, which says who calls whom: no callee stands below a function that never calls it."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.collapsed import Stacks
from tests.interpreters.pythons import Python, running
from tests.interpreters.runs import count, functions, record, seen, stacks


def met(found: Stacks, functions: set[str]) -> bool:
    """More than 50 samples, these functions among them."""
    return count(found) > 50 and functions <= seen(found, "calls.py")


def record_calls(python: Python, folder: Path, *options: str) -> tuple[dict[str, Any], int, int]:
    """(summary, samples, those of them that were merged in part); every stack is judged."""
    output = folder / "out.collapsed"
    with running(python, "calls.py", "1") as process:
        assert process.stdout is not None
        callers = {name: set(calling) for name, calling in json.loads(process.stdout.readline()).items()}
        enough = partial(met, functions={"leaf", "deep", "by_reduce", "by_callback"})
        summary = record(process.pid, output, "--native", "all", *options, until=enough)
    found = stacks(output)
    assert enough(found)
    for frames, _ in found:
        names = functions(frames, "calls.py")
        if names:
            assert names[0] in ("<module>", "main"), names
        for caller, callee in pairwise(names):
            assert caller in callers[callee], names
    return summary, count(found), sum(n for frames, n in found if any("merge: partial" in frame for frame in frames))
