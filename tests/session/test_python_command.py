"""Tests of reading a Python interpreter before its command starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pyprof.collectors.linux import procfs
from pyprof.interpreters.detection_symbols import FoundSymbols, Wanted, read_symbols
from pyprof.model.address_space import AddressSpace, Module
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline.interpreter_readers import Runtimes, runs_python

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    ("first_line", "is_one"),
    [("#!/usr/bin/env python3", True), ("#!/opt/x/bin/python3.12 -I", True), ("#!/bin/sh", False), ("", False)],
)
def test_a_script_is_taken_for_a_python_by_its_first_line(first_line: str, is_one: bool, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"{first_line}\n# python\n")
    assert runs_python(str(script)) is is_one


def test_a_python_is_known_behind_its_links_and_what_is_not_there_is_none(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(sys.executable)
    assert runs_python(str(link))
    assert not runs_python("/bin/sh")
    assert not runs_python(str(tmp_path / "python3"))


def test_after_a_rehearsal_a_python_is_known_without_a_question() -> None:
    """Read the interpreter that runs this test, and keep nothing of the test's process."""
    asked: list[int] = []

    def ask(space: AddressSpace, modules: Sequence[Module], wanted: Wanted) -> list[FoundSymbols | None]:
        asked.append(space.pid)
        return read_symbols(ImageStore(Diagnostics()), space, modules, wanted)

    runtimes = Runtimes(ask, Diagnostics())
    runtimes.rehearse(os.getpid())
    assert set(asked) == {os.getpid()}
    asked.clear()
    command = [sys.executable, "-c", "print('ready', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"ready\n"
        reader = runtimes.kernel_reader(other.pid)
        reader.inspect_process(procfs.read_address_space(other.pid, 1, 0), procfs.list_tasks(other.pid))
        assert reader.offsets() is not None
        other.communicate(b"\n")
    assert not asked
    assert runtimes.processes.keys() == {other.pid}
