"""Tests of files on a file system that stops responding: pyprof continues without them and names them."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.jit_code_map import ALWAYS
from pyprof.objfile import io_deadline, untrusted_file_access
from pyprof.objfile.byte_source import FileSource, GrowingFile
from pyprof.objfile.mapped_object_files import SILENT
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import CodeScan
from pyprof.runtime_code.perf_map_and_jitdump import PerfMapCode
from tests.cli.support import PYPROF
from tests.hostile.fuse import Mounted, mounted
from tests.support import build

pytestmark = [pytest.mark.live, pytest.mark.fuzz, pytest.mark.system]

HANGS_S = 100
"""Timeout in seconds, which only a hang exceeds."""
SPIN = "int main(void) { for (volatile unsigned long turns = 0;; turns++); }"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Mounted]:
    """Mount a folder with a program and a perf map."""
    (tmp_path / "spin.c").write_text(SPIN)
    program = build(tmp_path / "spin.c", tmp_path / "spin")
    names = tmp_path / "names"
    names.write_text("1000 10 f\n")
    (tmp_path / "mounted").mkdir()
    with mounted(tmp_path / "mounted", program, names) as found:
        yield found


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_deadline, "RESPONSE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(io_deadline, "_silent", set())
    monkeypatch.setattr(io_deadline, "_answering", set())


@pytest.mark.usefixtures("short")
def test_file_that_was_open_is_at_its_end_where_reading_does_not_return(
    shared: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patient:
        patient.setattr(io_deadline, "RESPONSE_TIMEOUT_S", HANGS_S)
        source = FileSource(untrusted_file_access.open_file("/", str(shared.folder / "spin")))
        assert bytes(source.read(0, 4)) == b"\x7fELF"
    shared.fall_silent()
    assert bytes(source.read(source.size - 8, 8)) in (b"", (shared.folder.parent / "spin").read_bytes()[-8:])
    with pytest.raises(io_deadline.Unanswered):
        untrusted_file_access.find_file("/", str(shared.folder / "names"))


@pytest.mark.usefixtures("short")
def test_mount_that_was_silent_is_asked_no_more_and_others_are(
    shared: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_deadline, "RESPONSE_TIMEOUT_S", 2)  # a busy machine may start the probe late
    shared.fall_silent()
    for name in ("spin", "names", "other"):
        with pytest.raises(io_deadline.Unanswered):
            untrusted_file_access.open_file("/", str(shared.folder / name))
        monkeypatch.setattr(io_deadline, "_answers", lambda _: pytest.fail("it is asked again"))
        monkeypatch.setattr(io_deadline, "RESPONSE_TIMEOUT_S", HANGS_S)
    os.close(untrusted_file_access.open_file("/", str(shared.folder.parent / "spin")))


@pytest.mark.usefixtures("short")
def test_mount_whose_probe_outlasts_the_call_is_asked_no_more(shared: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    monkeypatch.setattr(io_deadline, "RESPONSE_TIMEOUT_S", 1)
    monkeypatch.setattr(io_deadline, "_answers", lambda _: end.wait(HANGS_S))
    with pytest.raises(io_deadline.Unanswered):
        untrusted_file_access.open_file("/", str(shared.folder / "spin"))
    assert len(io_deadline._silent) == 1
    end.set()


@pytest.mark.usefixtures("short")
def test_perf_map_that_does_not_answer_is_named(shared: Mounted) -> None:
    diagnostics = Diagnostics()
    file = GrowingFile(partial(untrusted_file_access.open_file, "/", str(shared.folder / "names")), frozenset({0}))
    code = PerfMapCode(file, diagnostics)
    space = AddressSpace(1, 1, 0, (), lambda avma, size: b"", "")
    shared.fall_silent()
    code.update(CodeScan(space, X86_64, ALWAYS, 100, ()))
    assert diagnostics.counts[SILENT] == 1
    assert len(diagnostics.problems["[jit] perf map"]) == 1


@pytest.mark.parametrize("command", ["record", "dump", "doctor"])
def test_program_whose_file_does_not_answer_is_looked_at_all_the_same(
    command: str, shared: Mounted, tmp_path: Path
) -> None:
    program = shared.folder / "spin"
    out, summary = tmp_path / "a.collapsed", tmp_path / "s.json"
    options = ("-d", "0.3", "-o", str(out), "--summary", str(summary)) if command == "record" else ()
    with subprocess.Popen([program]) as target:
        try:
            shared.fall_silent()
            pid = (str(target.pid),) if command == "doctor" else ("-p", str(target.pid))
            done = subprocess.run(
                [*PYPROF, command, *pid, *options], capture_output=True, text=True, timeout=HANGS_S, check=False
            )
        finally:
            target.kill()
    assert done.returncode == 0, done.stderr
    if command == "record":
        written = json.loads(summary.read_text())
        assert written["errors"][SILENT] > 0
        assert [each["path"] for each in written["modules"] if SILENT in str(each["problems"])] == [str(program)]
        assert out.read_text()
