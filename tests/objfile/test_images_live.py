"""Tests of images of live processes whose files are mapped in various ways, deleted, replaced or elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace, Mapping, ProgramImage
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_memory_image import read_own_vdso, rebuild_image
from pyprof.objfile.mapped_object_files import DIFFERS, Image, ImageStore
from pyprof.problem_counters import Diagnostics
from tests.objfile.live import Live, library, running, symbol, where
from tests.support import missing, need

pytestmark = [pytest.mark.live, pytest.mark.system]

NO_PID = 1 << 29
"""A pid that no process has, so that /proc/PID/map_files cannot be used."""


def image_of(live: Live, name: str = "main", store: ImageStore | None = None, **lies: object) -> Image | None:
    return (store or ImageStore(Diagnostics())).image(live.space(**lies), live.at[name])  # type: ignore[arg-type]


LAYOUTS = {
    "pie": (),
    "exec": ("-no-pie",),
    "static": ("-static",),
    "static-pie": ("-static-pie",),
    "noseparate-code": ("-Wl,-z,noseparate-code",),
    "separate-code": ("-Wl,-z,separate-code",),
    "prelinked": ("-Wl,-Ttext-segment=0x10000000",),
    "prelinked-exec": ("-no-pie", "-Wl,-Ttext-segment=0x20000000"),
    "far-text": ("-no-pie", "-Wl,-Ttext=0x30000000"),
    "2m-pages": ("-Wl,-z,max-page-size=0x200000",),
    "lld": ("-fuse-ld=lld",),
    "lld-2m-pages": ("-fuse-ld=lld", "-Wl,-z,max-page-size=0x200000"),
    "lld-separate-code": ("-fuse-ld=lld", "-Wl,-z,separate-loadable-segments"),
    "gold": ("-fuse-ld=gold",),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_svma_of_running_code_is_that_of_its_symbol(layout: str, tmp_path: Path) -> None:
    if layout.startswith("lld"):
        need("ld.lld")
    if layout == "gold":
        need("ld.gold")
    program = where(tmp_path, layout, *LAYOUTS[layout])
    with running([program]) as live:
        found = image_of(live)
        assert found is not None
        assert not found.from_memory
        for name, avma in live.at.items():
            assert found.svma(avma) == symbol(program, name)
            assert found.rel(avma) == found.svma(avma) - found.file.min_vaddr
        rebuilt = rebuild_image(live.space(), found.module, live.at["main"])
        assert rebuilt is not None
        assert rebuilt[1] == found.bias


def test_deleted_file_is_read_through_the_kernels_handle(tmp_path: Path) -> None:
    if os.geteuid():
        missing("needs root: /proc/PID/map_files")
    program = where(tmp_path)
    expected = symbol(program, "main")
    with running([program]) as live:
        program.unlink()
        found = image_of(live)
        assert found is not None
        assert not found.from_memory
        assert found.svma(live.at["main"]) == expected
        assert found.file.section(".symtab") is not None


def test_deleted_file_without_handle_is_rebuilt_from_memory(tmp_path: Path) -> None:
    program = where(tmp_path, "where", "-rdynamic")
    kept = tmp_path / "kept"
    shutil.copy(program, kept)
    with running([program]) as live:
        program.unlink()
        diagnostics = Diagnostics()
        found = image_of(live, store=ImageStore(diagnostics), pid=NO_PID, root="/nonexistent")
        assert found is not None
        assert found.from_memory
        assert diagnostics.counts["deleted_file_read"] == 1
        assert_same_tables(found, kept)


def assert_same_tables(image: Image, original: Path) -> None:
    elf = ElfFile.open(str(original))
    assert image.file.build_id == elf.build_id
    for name in (".eh_frame_hdr", ".dynsym", ".dynstr"):
        assert image.file.section(name) == elf.section(name)
        assert image.file.sections[name].addr == elf.sections[name].addr
    frames, made_up = elf.section(".eh_frame"), image.file.section(".eh_frame")
    assert frames is not None
    assert made_up is not None
    assert made_up[: len(frames)] == frames


@pytest.mark.parametrize("handle", [True, False], ids=["handle", "no-handle"])
@pytest.mark.parametrize("build_id", [True, False], ids=["build-id", "no-build-id"])
def test_file_replaced_on_disk_is_never_used(handle: bool, build_id: bool, tmp_path: Path) -> None:
    if handle and os.geteuid():
        missing("needs root: /proc/PID/map_files")
    flags = ("-rdynamic",) if build_id else ("-rdynamic", "-Wl,--build-id=none")
    program = where(tmp_path, "where", *flags)
    other = where(tmp_path, "other", *flags, "-DWAYS=7", "-O2")
    kept = tmp_path / "kept"
    shutil.copy(program, kept)
    with running([program]) as live:
        program.unlink()
        shutil.copy(other, program)  # replaces the file as an upgrade does
        diagnostics = Diagnostics()
        space = live.space(pid=None if handle else NO_PID)
        found = ImageStore(diagnostics).image(space, live.at["main"])
        assert found is not None
        assert found.from_memory is not handle
        assert found.svma(live.at["main"]) == symbol(kept, "main")
        assert_same_tables(found, kept)


@pytest.mark.parametrize("build_id", [True, False], ids=["build-id", "no-build-id"])
def test_file_overwritten_under_the_same_name_is_counted(build_id: bool, tmp_path: Path) -> None:
    flags = ("-rdynamic",) if build_id else ("-rdynamic", "-Wl,--build-id=none")
    program = where(tmp_path, "where", *flags)
    other = where(tmp_path, "other", *flags, "-DWAYS=7", "-O2")
    with running([program]) as live:
        space = live.space(pid=NO_PID, root="")
        program.unlink()
        other.rename(program)  # the mappings were read before, so the path has no "(deleted)"
        diagnostics = Diagnostics()
        found = ImageStore(diagnostics).image(space, live.at["main"])
        assert found is not None
        assert found.from_memory
        assert diagnostics.counts[DIFFERS] == 1
        [problem] = diagnostics.problems[str(program)]
        assert (problem.reason, problem.text) == ("file_differs", "file differs from the mapped one: read from memory")


def test_file_without_proof_is_refused(tmp_path: Path) -> None:
    program = where(tmp_path)
    with running([program]) as live:
        copy = tmp_path / "copy"
        shutil.copy(program, copy)
        space = live.space(pid=NO_PID, root="", memory=False)
        program.unlink()
        copy.rename(program)
        diagnostics = Diagnostics()
        assert ImageStore(diagnostics).image(space, live.at["main"]) is None
        assert diagnostics.counts["module_file_not_compared"] == 1


def test_same_file_is_used_where_memory_cannot_be_read(tmp_path: Path) -> None:
    program = where(tmp_path)
    with running([program]) as live:
        found = image_of(live, memory=False)
        assert found is not None
        assert found.svma(live.at["main"]) == symbol(program, "main")


def test_image_outlives_its_process_and_its_file(tmp_path: Path) -> None:
    program = where(tmp_path)
    expected = symbol(program, "main")
    store = ImageStore(Diagnostics())
    with running([program]) as live:
        space = live.space()
        found = store.image(space, live.at["main"])
        live.end()
    program.unlink()
    assert found is not None
    assert store.image(space, live.at["main"]) is found
    assert found.svma(live.at["main"]) == expected
    assert found.file.section(".symtab") is not None


def test_library_loaded_twice_has_two_images_and_one_file(tmp_path: Path) -> None:
    program, lib = where(tmp_path), library(tmp_path)
    expected = symbol(lib, "in_library")
    with running([program, lib]) as live:
        assert live.at["library0"] != live.at["library1"]
        store, space = ImageStore(Diagnostics()), live.space()
        first, second = store.image(space, live.at["library0"]), store.image(space, live.at["library1"])
        assert first is not None
        assert second is not None
        assert first is not second
        assert first.file is second.file
        assert first.svma(live.at["library0"]) == second.svma(live.at["library1"]) == expected


def test_file_in_another_mount_namespace_is_found(tmp_path: Path) -> None:
    program, hidden = where(tmp_path, "where"), tmp_path / "hidden"
    hidden.mkdir()
    inside = tmp_path / "here"
    inside.mkdir()
    where(inside, "where", "-DWAYS=5", "-O2")  # another file under that name in the test's namespace
    script = f"mount --bind {hidden} {inside} && cp {program} {inside}/where && exec {inside}/where"
    probe = subprocess.run([need("unshare"), "-m", "true"], capture_output=True, timeout=20, check=False)
    if probe.returncode:
        missing("needs root: unshare -m")
    with running(["unshare", "-m", "sh", "-c", script]) as live:
        assert (inside / "where").read_bytes() != program.read_bytes()
        for lies in ({}, {"root": ""}, {"root": "", "pid": NO_PID}):
            found = image_of(live, **lies)
            assert found is not None
            assert found.svma(live.at["main"]) == symbol(program, "main")
            assert found.from_memory is ("pid" in lies)


def test_text_moved_to_anonymous_pages_stays_in_its_image(tmp_path: Path) -> None:
    program = where(tmp_path)
    with running([program, "move"]) as live:
        space = live.space()
        hole = space.mapping_at(live.at["moved"])
        assert hole is not None
        assert hole.inode == 0
        found = ImageStore(Diagnostics()).image(space, live.at["moved"])
        assert found is not None
        assert found.svma(live.at["moved"]) == symbol(program, "moved")


def test_text_mapped_a_second_time_is_the_same_code(tmp_path: Path) -> None:
    program = where(tmp_path)
    text = ElfFile.open(str(program)).sections[".text"]
    page = text.offset & -4096
    with running([program, f"again={page:x}"]) as live:
        found = image_of(live, "again")
        assert found is not None
        assert found.svma(live.at["again"]) == text.addr - (text.offset - page)


def test_vdso_is_read_from_memory_with_its_tables(tmp_path: Path) -> None:
    with running([where(tmp_path)]) as live:
        space = live.space()
        vdso = next(module for module in space.modules if module.path == "[vdso]")
        found = ImageStore(Diagnostics()).image(space, vdso.start + 100)
        assert found is not None
        assert found.from_memory
        assert found.bias == vdso.start
        assert found.file.section(".eh_frame") is not None
        assert b"__vdso_clock_gettime" in bytes(found.file.section(".dynstr") or b"")


def test_vdso_of_a_process_that_has_ended_is_that_of_all_processes(tmp_path: Path) -> None:
    with running([where(tmp_path)]) as live:
        alive = live.space()
    vdso = next(module for module in alive.modules if module.path == "[vdso]")
    ended = replace(alive, read=lambda avma, size: b"", image=ProgramImage(alive=False))
    found = ImageStore(Diagnostics()).image(ended, vdso.start + 100)
    assert found is not None
    assert found.bias == vdso.start
    assert b"__vdso_clock_gettime" in bytes(found.file.section(".dynstr") or b"")


@pytest.mark.parametrize(
    "of", ["another machine", "another size", "an ABI of 32 bits"], ids=lambda of: str(of).replace(" ", "_")
)
def test_vdso_that_cannot_be_read_and_may_be_another_one_is_not_ours(of: str) -> None:
    start, size = 0x7FFF_0000_0000, len(read_own_vdso())
    if of == "an ABI of 32 bits":
        start = 0xF7F0_0000
    if of == "another size":
        size += 0x1000
    image = None if of == "another machine" else ProgramImage(alive=False)
    mapping = Mapping(start, start + size, "r-xp", 0, "00:00", 0, "[vdso]")
    space = AddressSpace(1, 1, 0, (mapping,), lambda avma, size: b"", "/proc/1/root", image=image)
    assert len(read_own_vdso()) > 0x1000
    assert ImageStore(Diagnostics()).image(space, start + 100) is None


def test_program_in_a_memfd_is_read(tmp_path: Path) -> None:
    program = where(tmp_path)
    fd = os.memfd_create("secret", 0)
    os.write(fd, program.read_bytes())
    with running([f"/proc/{os.getpid()}/fd/{fd}"]) as live:
        os.close(fd)
        for from_memory in (False, True):
            found = image_of(live, pid=NO_PID) if from_memory else image_of(live)
            assert found is not None
            assert found.from_memory is from_memory
            assert found.svma(live.at["main"]) == symbol(program, "main")


def test_generated_code_has_no_image(tmp_path: Path) -> None:
    with running([where(tmp_path, "where")]) as live:
        space = live.space()
        assert ImageStore(Diagnostics()).image(space, 0x10) is None
        vsyscall = [module.start for module in space.modules if module.path == "[vsyscall]"]
        for avma in vsyscall:
            assert ImageStore(Diagnostics()).image(space, avma) is None


def test_forgotten_space_gives_its_images_back(tmp_path: Path) -> None:
    store = ImageStore(Diagnostics())
    with running([where(tmp_path)]) as live:
        space = live.space()
        first = store.image(space, live.at["main"])
        store.forget(space)
        second = store.image(space, live.at["main"])
        assert first is not None
        assert second is not None
        assert first is not second
        assert first.bias == second.bias


@pytest.mark.parametrize("flags", [(), ("-Wl,--build-id=none",)], ids=["build-id", "no-build-id"])
@pytest.mark.parametrize("handle", [True, False], ids=["handle", "no-handle"])
def test_program_on_an_overlay_file_system_is_found(flags: tuple[str, ...], handle: bool, tmp_path: Path) -> None:
    lower, upper, work, merged = (tmp_path / name for name in ("lower", "upper", "work", "merged"))
    for folder in (lower, upper, work, merged):
        folder.mkdir()
    program = where(lower, "where", *flags)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    script = f"mount -t overlay overlay -o {options} {merged} && exec {merged}/where"
    command = [need("unshare"), "-m", "sh", "-c", script]
    probe = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    if probe.returncode:
        missing("needs root and overlayfs: unshare -m, mount -t overlay")
    with running(command) as live:
        found = image_of(live, pid=None if handle else NO_PID)
        assert found is not None
        assert not found.from_memory
        assert found.svma(live.at["main"]) == symbol(program, "main")
