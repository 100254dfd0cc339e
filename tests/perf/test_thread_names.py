"""Tests of naming compiler processes after their files, also if a process has ended before its records are read."""

from __future__ import annotations

import pytest

from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.processes_from_records import CompiledFiles


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Replace the command lines of processes by these. A process without one has ended."""
    found: dict[int, str] = {}
    monkeypatch.setattr(procfs, "read_arguments", lambda pid: found[pid].split(" ") if pid in found else [])
    return found


def test_compiler_that_ended_before_its_record_is_taken_has_the_file_read_ahead(lines: dict[int, str]) -> None:
    files = CompiledFiles()
    lines[7] = "cc1 src/a.c"
    files.read_ahead(7, "cc1")
    lines.clear()
    files.add_executed(7, 100, "cc1")
    assert files.find(7, 100) == "src/a.c"
    files.add_executed(7, 200, "cc1")  # another process of the number, of which nothing was read
    assert files.find(7, 200) == ""


def test_step_that_nobody_saw_has_the_file_of_the_driver_that_forked_it(lines: dict[int, str]) -> None:
    files = CompiledFiles()
    lines[7] = "gcc -c src/a.c -o a.o"
    files.add_executed(7, 100, "gcc")
    for pid in (8, 9):
        files.add_forked(pid, 110, (7, 100))
    files.add_executed(8, 110, "cc1")
    files.add_executed(9, 110, "sh")
    assert (files.find(8, 110), files.find(9, 110)) == ("src/a.c", "")
    files.forget(8, 110)
    assert files.find(8, 110) == ""


def test_command_lines_of_other_programs_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "read_arguments", lambda pid: pytest.fail("read"))
    files = CompiledFiles()
    files.read_ahead(7, "python3")
    files.add_executed(7, 100, "python3")
    assert files.find(7, 100) == ""
