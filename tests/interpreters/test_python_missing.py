"""Tests of recordings without Python frames: the summary says so first, and such stacks do not count as complete."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.options import CollectOptions
from tests.cli.support import BUSY, pyprof, python
from tests.support import PROGRAMS, build, missing

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


@pytest.fixture(autouse=True)
def allowed() -> None:
    try:
        choose_event(os.getpid(), 0, CollectOptions(kernel=True))
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")


@pytest.fixture(scope="module")
def busy() -> Iterator[int]:
    with python(BUSY) as target:
        yield target.pid


def recorded(folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Return the terminal's output as one line, and the summary."""
    summary = folder / "summary.json"
    command = ("record", "-d", "1", "-r", "199", "-o", str(folder / "a.html"), "--summary", str(summary), *options)
    done = pyprof(*command)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(summary.read_text())
    assert found["shown"]["total"] > 0
    assert sum(found["shown"]["ends"].values()) == found["shown"]["total"]
    began, _, said = done.stderr.partition("Ctrl-C to finish\n")
    assert began.startswith("pyprof: recording ")
    return " ".join(said.split()), found


@pytest.mark.parametrize("options", [("--collector", "perf"), ("--collector", "perf", "-k")], ids=["perf", "kernel"])
def test_stacks_without_python_functions_are_said_first_and_are_not_whole(
    busy: int, tmp_path: Path, options: tuple[str, ...]
) -> None:
    first, summary = recorded(tmp_path, "-p", str(busy), *options)
    assert first.startswith(f"pyprof: Python functions are missing in 1 process: -p {busy} --collector ptrace")
    assert ("ptrace, without -k, has them" in first) == ("-k" in options)
    assert [entry["pids"] for entry in summary["functions_missing"]] == [[busy]]
    ends = summary["shown"]["ends"]
    assert ends["no_python"] > 0.9 * summary["shown"]["total"]
    assert ends.get("root", 0) < 0.1 * summary["shown"]["total"]
    assert summary["warnings"][0]["hint"] == f"pyprof record -p {busy} --collector ptrace …"


def test_whole_machine_names_how_many_processes_lack_python(busy: int, tmp_path: Path) -> None:
    first, summary = recorded(tmp_path, "-a", "--collector", "perf")
    assert first.startswith("pyprof: Python functions are missing in ")
    (python_missing,) = [entry for entry in summary["functions_missing"] if entry["language"] == "Python"]
    assert busy in python_missing["pids"]


def test_nothing_is_said_to_be_missing_where_stops_read_them_or_none_runs(busy: int, tmp_path: Path) -> None:
    _, summary = recorded(tmp_path, "-p", str(busy), "--collector", "ptrace")
    assert summary["functions_missing"] == []
    assert summary["shown"]["ends"]["root"] > 0.9 * summary["shown"]["total"]
    program = build(PROGRAMS / "c_spin.c", tmp_path / "spinner", "-pthread")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as spinner:
        _, summary = recorded(tmp_path, "--collector", "perf", "-p", str(spinner.pid))
        spinner.kill()
    assert summary["functions_missing"] == []
