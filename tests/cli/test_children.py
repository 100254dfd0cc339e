"""Children that a recording of a running process leaves out: what they cost is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import pyprof
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

WORK = "for (1..4000000) { $x++ }"


@pytest.fixture
def parent() -> Iterator[int]:
    """The pid of a shell that leaves all work to children."""
    script = f"echo; while :; do {need('perl')} -e '{WORK}'; done"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def record(pid: int, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    summary = folder / "summary.json"
    done = pyprof(
        "record", "-p", str(pid), "-d", "2", "-o", str(folder / "a.html"), "--summary", str(summary), *options
    )
    assert done.returncode == (0 if json.loads(summary.read_text())["samples"] else 1), done.stderr
    return json.loads(summary.read_text()), done.stderr


def test_time_of_children_that_were_not_followed_is_told(parent: int, tmp_path: Path) -> None:
    summary, said = record(parent, tmp_path)
    assert summary["not_followed"]["children_s"] > 5 * summary["not_followed"]["own_s"]
    assert 0.3 < summary["not_followed"]["children_s"] < 2.5
    assert "Children used" in said
    assert "-s records them" in " ".join(said.split())


def test_nothing_was_sampled_beside_busy_children_and_they_are_named_as_the_reason(tmp_path: Path) -> None:
    script = f"{need('perl')} -e 'print 1; $| = 1; print 1; 1 while 1'; :"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(1)
            summary, said = record(process.pid, tmp_path)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert summary["samples"] == 0
    words = " ".join(said.split())
    assert (
        "nothing was sampled: 100 % of the processor time was its children's, which were not followed: add -s" in words
    )
    assert "no thread was running" not in words


def test_nothing_is_told_of_children_that_were_followed(parent: int, tmp_path: Path) -> None:
    summary, said = record(parent, tmp_path, "-s")
    assert summary["samples"] > 20
    assert summary["not_followed"] == {"own_s": 0.0, "children_s": 0.0}
    assert "Children used" not in said
