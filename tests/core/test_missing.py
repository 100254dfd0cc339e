"""Tests of cores whose files are missing or have changed: the frames that remain and the reported problems."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from pyprof.objfile.elf_file import ElfFile
from tests.cli.support import pyprof
from tests.core.making import TARGETS, Core, crash, program, run_in_gdb, run_to_core
from tests.core.support import Document, dump, dump_with, names, pcs
from tests.support import need

pytestmark = [pytest.mark.matrix, pytest.mark.system]

CRASH = ["crash_4", "crash_3", "crash_2", "crash_1", "main"]


def own_core(tmp_path: Path, filter_bits: str = "") -> Core:
    """Return a native core of a private copy of a program, which the test may move."""
    path = str(shutil.copy(program("x86_64", "core_threads.c"), tmp_path / "mine"))
    command = (
        [path] if not filter_bits else ["sh", "-c", f"echo {filter_bits} > /proc/self/coredump_filter; exec {path}"]
    )
    return Core(run_to_core(TARGETS["x86_64"], command, _folder(tmp_path / "cores")), Path(path), "")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def problems(document: Document, path: Path) -> list[str]:
    return [problem["text"] for problem in document["problems"] if problem["module"] == str(path)]


def test_missing_program_is_named_with_its_build_id_and_stacks_are_truncated(tmp_path: Path) -> None:
    core = own_core(tmp_path)
    whole = dump(core, code=0)
    build_id = ElfFile.open(str(core.program)).build_id
    core.program.unlink()
    document = dump(core, code=3)
    assert any("not found" in text and build_id in text for text in problems(document, core.program))
    for thread in document["threads"]:
        assert thread["end"] != "root"
    for tid, found in pcs(document).items():
        assert found
        assert pcs(whole)[tid][: len(found)] == found
    assert [problem["hint"] for problem in document["problems"] if "--exe" in problem["hint"]]


def test_program_of_another_build_is_refused(tmp_path: Path) -> None:
    core = own_core(tmp_path)
    other = program("x86_64", "core_threads.c", "-O1")
    document = dump_with(core, "--exe", str(other))
    assert not any("differs" in text for text in problems(document, core.program))  # the program itself is present
    core.program.unlink()
    document = dump_with(core, "--exe", str(other), code=3)
    assert any("differs" in text for text in problems(document, core.program))
    assert "crash_4" not in names(document["threads"][0])
    shutil.copy(other, core.program)
    document = dump_with(core, code=3)
    assert any("differs" in text for text in problems(document, core.program))


@pytest.mark.parametrize("place", ["sysroot", "build-id", "exe"])
def test_program_is_found_below_the_sysroot_by_its_build_id_and_where_the_user_says(place: str, tmp_path: Path) -> None:
    core = own_core(tmp_path)
    build_id = ElfFile.open(str(core.program)).build_id
    sysroot = tmp_path / "root"
    new = {
        "sysroot": sysroot / str(core.program)[1:],
        "build-id": sysroot / f"usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}",
        "exe": tmp_path / "elsewhere",
    }[place]
    new.parent.mkdir(parents=True, exist_ok=True)
    core.program.rename(new)
    document = dump_with(core, *(["--exe", str(new)] if place == "exe" else ["--sysroot", str(sysroot)]), code=0)
    assert names(document["threads"][0])[:5] == CRASH


def test_code_that_the_core_holds_is_unwound_without_any_file(tmp_path: Path) -> None:
    core = own_core(tmp_path, filter_bits="0x7f")
    whole = dump(core, code=0)
    core.program.unlink()
    document = dump(core, code=3)
    assert pcs(document) == pcs(whole)
    first = document["threads"][0]
    assert {frame["trust"] for frame in first["frames"][1:]} == {"eh_frame"}
    assert first["end"] == "root"


def test_core_without_file_notes_says_that_it_needs_the_program() -> None:
    core = crash("aarch64", "core_threads.c", "-fstack-protector")
    whole = pcs(dump(core))
    core.program.rename(core.program.with_suffix(".away"))
    done = pyprof("dump", "--core", str(core.path))
    assert done.returncode == 3
    assert "its program was not found" in done.stderr
    assert "--exe FILE" in done.stderr
    document = dump_with(core, code=3)
    for tid, found in pcs(document).items():
        assert set(found) <= set(whole[tid])  # frame pointers alone miss the caller of a leaf function
        assert len(found) >= 5


def test_library_that_is_not_here_leaves_the_frames_of_the_program_right() -> None:
    core = crash("aarch64", "core_threads.c")
    whole = dump(core)
    document = dump_with(core, "--exe", str(core.program), code=3)
    assert any("not found" in text for text in problems(document, Path("/lib/libc.so.6")))
    parked = ["parked_3", "parked_2", "parked_1", "thread_main"]
    for ours, complete in zip(document["threads"][1:], whole["threads"][1:], strict=True):
        assert [name for name in names(ours) if name in parked] == parked
        assert [f["pc"] for f in ours["frames"]] == [f["pc"] for f in complete["frames"]]


def test_program_of_another_build_is_told_by_its_dynamic_table_where_no_build_id_is() -> None:
    core = crash("aarch64", "core_threads.c")
    other = program("aarch64", "core_signal.c")
    done = pyprof("dump", "--core", str(core.path), "--exe", str(other), "--sysroot", core.sysroot)
    assert done.returncode == 3
    assert "program file differs" in done.stderr
    assert "crash_leaf" not in done.stdout


@pytest.mark.parametrize("arch", ["x86_64", "i386"])
def test_kernel_core_without_its_file_note_is_read_by_the_link_map(arch: str, tmp_path: Path) -> None:
    core = crash(arch, "core_threads.c")
    data = bytearray(core.path.read_bytes())
    at = data.index(b"ELIF")  # the type of NT_FILE, little-endian
    data[at : at + 4] = b"NONE"
    bare = Core(tmp_path / "core", core.program, "")
    bare.path.write_bytes(data)
    assert pcs(dump_with(bare, code=0)) == pcs(dump(core))
    modules = {frame["module"] for frame in dump(bare)["threads"][0]["frames"]}
    assert {Path(module).name for module in modules} == {core.program.name, "libc.so.6"}


def test_core_that_was_cut_off_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    core = crash("s390x", "core_threads.c", "-static")
    cut = tmp_path / "cut"
    shutil.copy(core.path, cut)
    os.truncate(cut, core.path.stat().st_size // 3)
    done = pyprof("dump", "--core", str(cut), *core.options)
    assert done.returncode == 3
    assert "core file is cut off" in done.stderr
    assert "crash_4" in done.stdout


def test_core_of_a_living_process_has_no_signal(tmp_path: Path) -> None:
    path = program("x86_64", "core_threads.c")
    need("gcore")
    with subprocess.Popen([str(path), "wait"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            subprocess.run(
                ["gcore", "-o", str(tmp_path / "core"), str(process.pid)], check=True, capture_output=True, timeout=60
            )
        finally:
            process.send_signal(signal.SIGKILL)
    document = dump_with(Core(tmp_path / f"core.{process.pid}", path, ""), code=0)
    assert document["signal"] is None
    assert document["pid"] == process.pid
    assert {thread["state"] for thread in document["threads"]} == {"stopped"}
    main = next(thread for thread in document["threads"] if thread["tid"] == process.pid)
    assert names(main)[1:6] == CRASH
    assert path.name.startswith(main["name"][:15])


def test_core_that_a_debugger_wrote_at_the_crash_is_like_the_kernels(tmp_path: Path) -> None:
    path = program("x86_64", "core_threads.c")
    document = dump_with(Core(run_in_gdb([str(path)], tmp_path), path, ""), code=0)
    assert document["signal"]["name"] == "SIGSEGV"
    (crashed,) = [thread for thread in document["threads"] if thread["state"] == "crashed"]
    assert names(crashed)[:5] == CRASH
    assert len(document["threads"]) == 3


def test_pointer_authentication_does_not_hide_callers() -> None:
    core = crash("aarch64", "core_threads.c", "-mbranch-protection=standard")
    document = dump(core, code=0)
    assert names(document["threads"][0])[:5] == CRASH


USAGE = [
    (["--core", "{none}"], 1, "No such file"),
    (["--core", "{program}"], 1, "not a core file"),
    (["--core", "{text}"], 1, "not an ELF file"),
    (["--core", "{core}", "--exe", "{none}"], 2, "No such file"),
    (["--core", "{core}", "--exe", "{text}"], 2, "not an ELF file"),
    (["--core", "{core}", "--exe", "{arm}"], 2, "another architecture"),
    (["--core", "{core}", "-p", "1"], 2, "not allowed with"),
    (["-p", "1", "--sysroot", "/"], 2, "need --core"),
    ([], 2, "required"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), USAGE)
def test_wrong_use_is_one_sentence(arguments: list[str], code: int, text: str, tmp_path: Path) -> None:
    core = crash("x86_64", "core_threads.c")
    (tmp_path / "text").write_text("text")
    places = {"none": tmp_path / "none", "text": tmp_path / "text", "program": core.program, "core": core.path}
    if "{arm}" in arguments:
        places["arm"] = program("arm", "core_threads.c")
    done = pyprof("dump", *(argument.format(**places) for argument in arguments))
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr
