"""Tests of processes that end during a recording: their JIT data stays while samples need it, without open files."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pyprof.collectors.linux import procfs
from pyprof.model.address_space import AddressSpace, ProgramImage
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.jit_code_of_recording import RuntimeCode

pytestmark = [pytest.mark.live, pytest.mark.system]

PC = 0x100000


@contextmanager
def program() -> Iterator[tuple[AddressSpace, Path]]:
    """Yield a running process and the path of its perf map."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        path = Path(f"/tmp/perf-{process.pid}.map")
        try:
            path.write_text(f"{PC:x} 10 early\n")
            yield replace(procfs.read_address_space(process.pid, 1, 0), image=ProgramImage()), path
        finally:
            path.unlink(missing_ok=True)
            process.kill()


def runtime_code() -> tuple[RuntimeCode, ImageStore]:
    diagnostics = Diagnostics()
    images = ImageStore(diagnostics)
    return RuntimeCode(images, UnwindOptions(), diagnostics), images


def times_open(path: Path) -> int:
    links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(link) == str(path) for link in links if os.path.lexists(link))


def name_at(code: RuntimeCode, space: AddressSpace, pc: int) -> str | None:
    code.end_lookup_round()
    found = code.late_description(space, pc)
    return found.name.name if found and found.name else None


def test_files_of_an_ended_process_are_read_closed_and_forgotten() -> None:
    code, _ = runtime_code()
    with program() as (space, path):
        assert code.processes.process(space) is not None
        begun = time.monotonic_ns()
        code.drop_unused(set(), begun)
        assert times_open(path) == 1
        with path.open("a") as more:
            more.write(f"{PC + 0x100:x} 10 last\n")
        assert space.image
        space.image.alive = False
    code.drop_unused(set(), begun)
    assert times_open(path) == 0
    assert [name_at(code, space, pc) for pc in (PC, PC + 0x100)] == ["early", "last"]
    code.drop_unused(set(), time.monotonic_ns())
    assert name_at(code, space, PC) is None


def test_process_whose_pid_or_program_is_another_one_now_is_looked_at_anew() -> None:
    code, _ = runtime_code()
    with program() as (space, path):
        first = code.processes.process(space)
        assert space.image
        space.image.alive = False
        code.drop_unused(set(), 0)
        path.write_text(f"{PC:x} 10 other\n")
        second = replace(space, id=2, image=ProgramImage())
        assert code.processes.process(second) not in (first, None)
        assert (name_at(code, space, PC), name_at(code, second, PC)) == ("early", "other")
        third = replace(second, id=3, generation=1)
        assert code.processes.process(third) is code.processes.process(second)


def test_object_files_of_processes_that_have_ended_are_not_kept() -> None:
    code, images = runtime_code()
    with program() as (space, _):
        code.processes.process(space)
        assert len(code.processes._symbols) > 1
        images.forget(space)
    gc.collect()
    assert len(code.processes._symbols) == 0
