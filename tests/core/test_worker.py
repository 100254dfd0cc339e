"""Tests that a worker parses, unwinds and symbolizes cores: the main process reads none of their data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyprof.collectors.linux import process_sandbox
from pyprof.errors import PyprofError
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import DeadTarget, UnwindOptions
from pyprof.session.core_and_crash_dump_profile import examined
from pyprof.session.worker.worker_process import Worker, WorkerDied, forked, spawned
from pyprof.unwind.unwinder import Unwinder
from tests.core.making import Core, crash
from tests.core.support import dump
from tests.support import missing

pytestmark = [pytest.mark.matrix, pytest.mark.system]


def target(core: Core, path: Path | None = None) -> DeadTarget:
    return DeadTarget(
        path=str(path or core.path),
        is_minidump=False,
        exe=str(core.program),
        sysroot="",
        stack_size=1 << 20,
        unwind=UnwindOptions(),
        registers=True,
        sandbox=False,
    )


def test_process_that_prints_parses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    core = crash("x86_64", "core_threads.c")
    monkeypatch.setattr(ElfFile, "__init__", lambda *_: pytest.fail("it parses an object file or the core"))
    monkeypatch.setattr(ImageStore, "image", lambda *_: pytest.fail("it asks what a module's file has"))
    monkeypatch.setattr(Unwinder, "walk", lambda *_: pytest.fail("it unwinds"))
    found = examined(target(core), spawned)
    assert found.threads[0].whole
    assert found.threads[0].state == "crashed"
    assert found.registers.keys() == {thread.tid for thread in found.threads}


def test_worker_without_rights_finds_the_same() -> None:
    try:
        process_sandbox.build_filter(os.uname().machine, os.getpid(), ())
    except NotImplementedError:
        missing("needs x86-64 or AArch64")
    core = crash("x86_64", "core_threads.c")
    assert core.program.parent.stat().st_mode & 0o077 == 0, "the folder of the program is private"
    assert dump(core, "--sandbox", code=0) == dump(core, "--no-sandbox", code=0)


def test_worker_that_dies_and_a_file_that_is_no_core_are_errors_of_their_own() -> None:
    def started_to_die(confined: bool) -> Worker:
        worker = forked(confined)
        worker.kill()
        return worker

    core = crash("x86_64", "core_threads.c")
    with pytest.raises(WorkerDied, match="by signal 9"):
        examined(target(core), started_to_die)
    with pytest.raises(PyprofError) as refused:
        examined(target(core, Path(__file__)), forked)
    assert "--core takes a core file" in refused.value.hint
