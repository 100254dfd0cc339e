"""Runs of pyprof on a process, and what they wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = "1.5"


def record(pid: int, output: Path, *options: str) -> dict[str, Any]:
    """The summary."""
    summary = output.with_suffix(".summary")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pyprof", "record", "-p", str(pid), "-q", "-d", SECONDS, "-r", "400"),
            *("-o", str(output), "--summary", str(summary), *options),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def stacks(path: Path) -> list[tuple[list[str], int]]:
    """Of a collapsed file: frames from the root, and how often, of all that was sampled."""
    found = []
    for line in path.read_text().splitlines():
        names, _, count = line.rpartition(" ")
        if not names.startswith("[not sampled"):
            found.append((names.split(";"), int(count)))
    return found


def functions(frames: list[str], file: str) -> list[str]:
    """The functions of one Python file, by their plain names."""
    ours = [frame.partition(" (")[0] for frame in frames if frame.endswith(f"({file})")]
    return [name.rpartition(".")[2] for name in ours]


def dump(pid: int, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pyprof", "dump", "-p", str(pid), "--json", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
