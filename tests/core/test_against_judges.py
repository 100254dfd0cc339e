"""Tests of cores of each architecture: the frames of all threads equal those of gdb and eu-stack."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.core.judges import eu_stack_pcs, gdb_pcs
from tests.core.making import TARGETS, Core, crash, program
from tests.core.support import dump, names, pcs
from tests.support import need

pytestmark = [pytest.mark.matrix, pytest.mark.system]

CRASH = ["crash_4", "crash_3", "crash_2", "crash_1", "main"]
PARKED = ["parked_3", "parked_2", "parked_1", "thread_main"]


@pytest.mark.parametrize("pie", ["-pie", "-no-pie"])
@pytest.mark.parametrize("arch", list(TARGETS))
def test_all_threads_have_the_stacks_that_the_program_made(arch: str, pie: str) -> None:
    core = crash(arch, "core_threads.c", *(() if pie == "-pie" else (pie,)))
    document = dump(core)
    assert document["arch"] == arch
    first, *others = document["threads"]
    assert first["state"] == "crashed"
    assert first["end"] == "root"
    assert names(first)[:5] == CRASH
    assert names(first)[-1] in ("_start", "__libc_start_main")
    assert len(others) == 2
    for thread in others:
        assert thread["state"] == "stopped"
        assert [name for name in names(thread) if name in PARKED] == PARKED
        assert arch == "arm" or thread["end"] == "root"  # start_thread of glibc has EXIDX_CANTUNWIND on arm
    assert document["signal"]["name"] == "SIGSEGV"
    assert document["exe"].endswith(core.program.name)
    assert {frame["trust"] for frame in first["frames"][1:]} <= {"eh_frame", "debug_frame", "exidx"}


@pytest.mark.parametrize("arch", list(TARGETS))
def test_frames_of_all_threads_are_those_of_gdb(arch: str, tmp_path: Path) -> None:
    core = crash(arch, "core_threads.c", "-no-pie")
    ours, theirs = pcs(dump(core)), gdb_pcs(core, tmp_path)
    assert ours.keys() == theirs.keys()
    for tid, found in theirs.items():
        while found and not found[-1]:
            found.pop()  # gdb shows the root's return address 0 as a frame
        assert ours[tid][: len(found)] == found
        assert len(found) >= 5


@pytest.mark.parametrize("linked", ["-pie", "-static"])
@pytest.mark.parametrize("arch", ["x86_64", "i386"])
def test_frames_of_a_core_of_the_kernel_are_those_of_eu_stack(arch: str, linked: str) -> None:
    core = crash(arch, "core_threads.c", linked)
    assert pcs(dump(core)) == eu_stack_pcs(core)


@pytest.mark.parametrize("arch", ["x86_64", "i386"])
def test_frames_of_a_core_of_gcore_are_those_of_gdb_and_eu_stack(arch: str, tmp_path: Path) -> None:
    ladder = program(arch, "ladder.c", "-pthread")
    with subprocess.Popen([ladder, "spin", "60"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            command = [need("gcore"), "-o", str(tmp_path / "core"), str(process.pid)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        finally:
            process.kill()
    core = Core(tmp_path / f"core.{process.pid}", ladder, "")
    document = dump(core)
    ours = pcs(document)
    assert document["signal"] is None
    assert len(ours) == 5
    assert all(thread["end"] == "root" for thread in document["threads"])
    assert ours == {tid: found[: len(ours[tid])] for tid, found in gdb_pcs(core, tmp_path).items()}
    for tid, found in eu_stack_pcs(core).items():  # eu-stack ends at main
        assert found == ours[tid][: len(found)]
        assert len(found) >= 4


@pytest.mark.parametrize("arch", list(TARGETS))
def test_handler_on_its_own_stack_stands_on_the_long_stack_that_it_interrupted(arch: str) -> None:
    depth = 20_000
    document = dump(crash(arch, "core_signal.c", arguments=(str(depth),)), code=0)
    (thread,) = document["threads"]
    found = names(thread)
    assert found[:2] == ["crash_leaf", "in_handler"]
    at = found.index("raise_3")
    assert found[at : at + 3] == ["raise_3", "raise_2", "raise_1"]
    assert found[at + 3 : at + 4 + depth] == ["down"] * (depth + 1)
    assert found[at + 4 + depth] == "main"


@pytest.mark.parametrize("arch", ["x86_64", "i386", "aarch64", "s390x"])
def test_static_program_is_unwound(arch: str) -> None:
    document = dump(crash(arch, "core_threads.c", "-static"))
    assert names(document["threads"][0])[:5] == CRASH
    assert all(thread["end"] == "root" for thread in document["threads"])
