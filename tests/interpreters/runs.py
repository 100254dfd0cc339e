"""Runs of pyprof on a process, and readers of their output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyprof.model.loss_reason_texts import problem
from tests import collapsed, warm
from tests.collapsed import Stacks

FIRST_S, MAX_S = 0.5, 8.0
RATE = "800"
NO_NAMES = problem("no_time_for_names", path="").text
PIECES_S = [min(FIRST_S * 2**number, MAX_S) for number in range(10)]
"""Durations in seconds of the recordings of one target that a test makes until it has the samples that it needs."""


def record(pid: int, output: Path, *options: str, until: Callable[[Stacks], bool] | None = None) -> dict[str, Any]:
    """Record a process and return the summary.

    Args:
        pid: Process id.
        output: Path of the collapsed stacks.
        options: Further options of pyprof record.
        until: A condition on the collapsed stacks, which depend on the load of the machine. While it does not hold,
            longer recordings are appended and their errors added to the summary.
    """
    summary = _record_with_names(pid, output, FIRST_S, *options)
    errors = Counter(summary["errors"])
    for seconds in PIECES_S[1:]:
        if until is None or until(stacks(output)):
            break
        lines = output.read_text()
        errors.update(_record_with_names(pid, output, seconds, *options)["errors"])
        output.write_text(lines + output.read_text())
    return {**summary, "errors": dict(errors)}


def _record_with_names(pid: int, output: Path, seconds: float, *options: str) -> dict[str, Any]:
    """Record for long enough to find the names.

    A stopped recording has one second of processor time for symbolization.
    """
    summary = _record(pid, output, seconds, *options)
    for longer in (2, 4, 8):
        problems = [each["text"] for module in summary["modules"] for each in module["problems"]]
        if summary["samples"] and NO_NAMES not in problems:
            break
        summary = _record(pid, output, min(longer * seconds, MAX_S), *options)
    return summary


def _record(pid: int, output: Path, seconds: float, *options: str) -> dict[str, Any]:
    summary = output.with_suffix(".summary")
    to = ("-o", str(output), "--summary", str(summary))
    done = warm.run("record", "-p", str(pid), "-q", "-d", str(seconds), "-r", RATE, *to, *options, timeout=120)
    assert done.returncode in (0, 1), (done.returncode, done.stdout[-300:], done.stderr)
    found: dict[str, Any] = json.loads(summary.read_text())
    assert done.returncode == 0 or not found["samples"], (done.returncode, done.stdout[-300:], done.stderr)
    return found


def count(found: Stacks) -> int:
    return sum(n for _, n in found)


def seen(found: Stacks, file: str) -> set[str]:
    """Return the functions of one Python file that occur in the stacks."""
    return {name for frames, _ in found for name in functions(frames, file)}


def stacks(path: Path) -> Stacks:
    """Return the sampled stacks of a collapsed file."""
    return collapsed.sampled(path.read_text())


def functions(frames: list[str], file: str) -> list[str]:
    """Return the unqualified names of the stack's functions from one Python file."""
    return [plain_name(frame) for frame in frames if frame.endswith(f"({file})")]


def plain_name(frame: str) -> str:
    """Return a Python function's name without file and qualifier."""
    return frame.partition(" (")[0].rpartition(".")[2]


def dump(pid: int, *options: str) -> dict[str, Any]:
    done = warm.run("dump", "-p", str(pid), "--json", *options, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
