"""A program with five thousand executable mappings is recorded like others, and so is one that makes more and more of
them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.support import PYPROF
from tests.live.support.recording import running
from tests.support import PROGRAMS, build

HANGS_S = 100
"""Only what grows with the square of the mappings takes that long."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROGRAMS / "c_many_mappings.c", tmp_path_factory.mktemp("mappings") / "c_many_mappings", "-O1")


@pytest.mark.parametrize("making", [[], ["anew"]], ids=["stay", "anew"])
@pytest.mark.parametrize("collector", ["auto", "ptrace"])
def test_it_is_recorded(program: Path, making: list[str], collector: str, tmp_path: Path) -> None:
    out = tmp_path / "a.collapsed"
    with running(program, *making) as target:
        command = [*PYPROF, "record", "-d", "2", "-p", str(target.pid), "--collector", collector, "-o", str(out)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=HANGS_S)
        assert target.poll() is None
    assert done.returncode == 0, done.stderr
    samples = [line.rsplit(" ", 1) for line in out.read_text().splitlines()]
    assert sum(int(count) for stack, count in samples if "main" in stack) > 0
