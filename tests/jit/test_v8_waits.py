"""A test of a JavaScript program that sleeps: its functions are in waits and in its core file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import warm
from tests.live.support.recording import Recording, record, running
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

PROGRAM = Path(__file__).parent / "programs" / "waits.js"
FUNCTIONS = ["main", "outer", "pause"]


def own(names: Iterable[str]) -> list[str]:
    """Return the functions of the program among those of a stack."""
    return [name for name in (text.partition(" / ")[0] for text in names) if name in FUNCTIONS]


def waits_of(recording: Recording) -> dict[tuple[str, ...], int]:
    """Return the sleeps below JavaScript functions by stack, without those that were cut at the recording's edge."""
    return {stack: n for stack, n in recording.stacks.items() if "futex" in stack[-1] and own(stack)}


def test_sleeps_and_a_core_file_have_the_functions_that_wait(tmp_path: Path) -> None:
    with running(need("node"), PROGRAM) as process:
        recording = record(
            process.pid, tmp_path, "--collector", "auto", "--mode", "offcpu", "-i",
            seconds=0.8, until=lambda found: sum(waits_of(found).values()) >= 15,
        )  # fmt: skip
        command = [need("gcore"), "-o", str(tmp_path / "core"), str(process.pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=100)
    waits = waits_of(recording)
    assert {tuple(own(stack)) for stack in waits} == {tuple(FUNCTIONS)}
    done = warm.run("dump", "--core", str(tmp_path / f"core.{process.pid}"), "--json", "--native", "all")
    assert done.returncode in (0, 3), done.stderr
    threads = json.loads(done.stdout)["threads"]
    (main,) = [thread for thread in threads if thread["tid"] == process.pid]
    frames = [frame for frame in main["frames"] if frame["function"] in FUNCTIONS]
    functions = [frame["function"] for frame in reversed(frames)]
    assert functions == FUNCTIONS[: len(functions)]
    assert functions[:2] == FUNCTIONS[:2]  # the core may be of a moment between two waits
    assert {Path(frame["file"]).name for frame in frames} == {PROGRAM.name}
