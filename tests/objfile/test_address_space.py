"""Tests of grouping the lines of /proc/PID/maps into modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pyprof.model.address_space import AddressSpace, Mapping, ProgramImage, group_modules
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.mapped_file_search import Identity, find_candidates, identify
from pyprof.objfile.untrusted_file_access import Opener

LIB = ("08:01", 7, "/lib/a.so")
ANON = ("00:00", 0, "")


def line(start: int, size: int, perms: str, offset: int, file: tuple[str, int, str]) -> Mapping:
    return Mapping(start, start + size, perms, offset, *file)


def test_of_thousands_of_mappings_of_a_file_a_few_are_opened_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [at << 13 for at in range(1, 5001)]
    mappings = tuple(Mapping(at, at + 0x1000, "r-xp", at, "08:01", 7, "/a") for at in starts)
    opened: list[int] = []

    class Counting(Opener):
        def open_mapped(self, pid: int, start: int, end: int) -> int:
            opened.append(start)
            return os.open(sys.executable, os.O_RDONLY)

    read: list[int] = []

    def zeros(avma: int, size: int) -> bytes:
        read.append(avma)
        return bytes(size)

    monkeypatch.setattr("pyprof.objfile.untrusted_file_access._current", Counting())
    space = AddressSpace(0, os.getpid(), 0, mappings, zeros, "/nowhere", image=ProgramImage())
    (module,) = space.modules
    for candidate in find_candidates(space, module, {}, lambda: None, ElfFile.open):
        identify(space, module, candidate.elf, 0)
    assert 0 < len(opened) <= 16
    assert 0 < len(read) <= 256


def test_file_whose_build_id_is_in_no_segment_is_compared_by_its_content() -> None:
    data = Path(sys.executable).read_bytes()
    elf = ElfFile.from_bytes(data, "program")
    base, first = 0x10000000, elf.loads[0]
    mappings = (Mapping(base, base + len(data), "r-xp", 0, "08:01", 7, "/a"),)

    def read(avma: int, size: int) -> bytes:
        return data[avma - base : avma - base + size]

    space = AddressSpace(0, os.getpid(), 0, mappings, read, "/", image=ProgramImage())
    (module,) = space.modules
    elf.__dict__["build_id"] = "ab" * 20  # as if only a section had it
    assert identify(space, module, elf, base - first.vaddr) is Identity.CONTENT
    del elf.__dict__["build_id"]
    assert identify(space, module, elf, base - first.vaddr) in (Identity.BUILD_ID, Identity.CONTENT)


def test_text_moved_to_huge_pages_as_a_whole_keeps_its_module() -> None:
    [module] = group_modules(
        [
            line(0x10000, 0x1000, "r--p", 0, LIB),
            line(0x200000, 0x400000, "r-xp", 0, ANON),
            line(0x600000, 0x1000, "r--p", 0x600000, LIB),
        ]
    )
    assert (module.start, module.end, module.path) == (0x10000, 0x601000, "/lib/a.so")


def test_second_mapping_far_away_is_a_module_of_its_own() -> None:
    modules = group_modules(
        [
            line(0x400000, 0x1000, "r-xp", 0, LIB),
            line(0x7F0000000000, 0x1000, "r-xp", 0, ANON),
            line(0x7F0000001000, 0x1000, "r-xp", 0x5000, LIB),
        ]
    )
    assert [(module.path, module.start) for module in modules] == [
        ("/lib/a.so", 0x400000),
        ("[anon]", 0x7F0000000000),
        ("/lib/a.so", 0x7F0000001000),
    ]


def test_vdso_in_a_hole_of_the_loader_is_a_module_of_its_own() -> None:
    """Use the layout of an AArch64 kernel, in which the loader's segments are 64 KiB apart."""
    modules = group_modules(
        [
            line(0x10000, 0x26000, "r-xp", 0, LIB),
            line(0x4B000, 0x2000, "r--p", 0, ("00:00", 0, "[vvar]")),
            line(0x4D000, 0x1000, "r-xp", 0, ("00:00", 0, "[vdso]")),
            line(0x4E000, 0x2000, "r--p", 0x2E000, LIB),
            line(0x50000, 0x2000, "rw-p", 0x30000, LIB),
        ]
    )
    assert [(module.path, module.start, module.end) for module in modules] == [
        ("/lib/a.so", 0x10000, 0x36000),
        ("[vdso]", 0x4D000, 0x4E000),
    ]
