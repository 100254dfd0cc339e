"""Tests of a Cortex-M program without an operating system in qemu-system-arm, whose only unwind table is .ARM.exidx."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from pyprof.objfile.elf_file import ElfFile
from tests import warm
from tests.remote.programs import bare
from tests.remote.runs import PYPROF, dump, on_the_ladder, record
from tests.remote.stubs import qemu_system_arm

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


def test_program_has_no_table_but_exidx() -> None:
    sections = ElfFile.open(str(bare())).sections
    assert ".ARM.exidx" in sections
    assert not {".eh_frame", ".debug_frame", ".sframe"} & set(sections)


def places_of_running_board(address: str) -> set[str]:
    """Return the program counters at a few moments. A board that is stopped has only one."""
    return {dump(address, "--exe", str(bare()))["threads"][0]["frames"][0]["pc"] for _ in range(4)}


def test_samples_of_the_running_board_are_whole(tmp_path: Path) -> None:
    with qemu_system_arm(bare()) as address:
        recorded = record(address, tmp_path, "--exe", str(bare()), "-r", "50", seconds=2)
        wrong = {stack: n for stack, n in recorded.stacks.items() if stack[0] != "reset" or not on_the_ladder(stack)}
        assert not wrong
        assert recorded.summary["ends"] == {"root": recorded.summary["samples"]}
        assert set(recorded.summary["trust"]) <= {"context", "exidx", "lr"}
        assert len(recorded.stacks) > 3
        assert recorded.summary["rate_wanted"] == 50
        assert 0 < recorded.summary["rate_reached"] <= 60
        assert len(places_of_running_board(address)) > 1


def test_samples_in_an_interrupt_reach_the_code_that_it_interrupted(tmp_path: Path) -> None:
    program = bare("-DTICK")
    with qemu_system_arm(program) as address:
        recorded = record(address, tmp_path, "--exe", str(program), "-r", "100", seconds=3)
    assert recorded.summary["ends"] == {"root": recorded.summary["samples"]}
    handlers = ("tick", "t_01", "t_02")
    inside = 0
    for stack, count in recorded.stacks.items():
        assert stack[0] == "reset"
        returns = [at for at, name in enumerate(stack) if name.startswith("[unknown]+0xffffff")]
        if returns:
            (at,) = returns
            assert stack[at + 1 :] == handlers[: len(stack) - at - 1]
            inside += count
            stack = stack[:at]
        assert stack == ("reset",) or on_the_ladder(stack)
    assert inside > 5


def test_board_whose_profiler_was_killed_can_be_recorded_again(tmp_path: Path) -> None:
    with qemu_system_arm(bare()) as address:
        command = [
            *PYPROF,
            "record",
            "--gdb",
            address,
            "--exe",
            str(bare()),
            "-q",
            "-o",
            "/dev/null",
            "-f",
            "collapsed",
        ]
        killed = subprocess.Popen(command, start_new_session=True)  # no front process
        time.sleep(1.5)
        killed.kill()
        killed.wait()
        recorded = record(address, tmp_path, "--exe", str(bare()), seconds=1)
        assert recorded.summary["ends"] == {"root": recorded.summary["samples"]}


def test_board_without_its_file_is_one_clear_error() -> None:
    with qemu_system_arm(bare()) as address:
        done = warm.run("dump", "--gdb", address)
    assert done.returncode == 1
    assert "--exe FILE" in done.stderr
    assert len(done.stderr.splitlines()) == 2
