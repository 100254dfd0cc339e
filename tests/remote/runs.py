"""Runs of pyprof on a gdb stub through the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm
from tests.remote.programs import RUNGS

PYPROF = [sys.executable, "-m", "pyprof"]
LADDER = (*RUNGS, "r_top")


@dataclass(frozen=True)
class Recorded:
    """A recording.

    Attributes:
        stacks: Number of samples by stack, from root to leaf.
        summary: The data that --summary writes.
    """

    stacks: dict[tuple[str, ...], int]
    summary: dict[str, Any]


def record(address: str, folder: Path, *options: str, seconds: float = 1.5, codes: Sequence[int] = (0,)) -> Recorded:
    output, summary = folder / "out.collapsed", folder / "out.json"
    to = ("-f", "collapsed", "-q", "-o", str(output), "--summary", str(summary))
    done = warm.run("record", "--gdb", address, "-d", str(seconds), *to, *options, timeout=90)
    assert done.returncode in codes, done.stderr
    if not output.exists():
        return Recorded({}, {})
    stacks: dict[tuple[str, ...], int] = {}
    for line in output.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        stacks[tuple(stack.split(";"))] = int(count)
    return Recorded(stacks, json.loads(summary.read_text()))


def dump(address: str, *options: str, codes: Sequence[int] = (0,)) -> dict[str, Any]:
    done = warm.run("dump", "--gdb", address, "--json", *options, timeout=90)
    assert done.returncode in codes, (done.returncode, done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names(thread: dict[str, Any]) -> list[str]:
    """Return the functions of a dumped thread from root to leaf."""
    return [frame["function"] for frame in reversed(thread["frames"]) if not frame["inlined"]]


def on_the_ladder(stack: Sequence[str]) -> bool:
    """Return True if the functions above main are a prefix of the ladder."""
    above = list(stack)[list(stack).index("main") + 1 :] if "main" in stack else ["?"]
    return tuple(above) == LADDER[: len(above)]
