"""Tests of the list of libunwind's dynamic unwind info: both layouts, both word sizes, and hostile lists."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.arch import AARCH64, I386, X86_64, Arch
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.libunwind_registrations import (
    MAX_INFOS,
    DynReader,
    Head,
    Op,
    RegionFormat,
    Tag,
    decode_getter,
    open_table,
)
from tests.jit.memory import Memory

LIST, INFO, REGION, NAME, CODE = 0x1000, 0x2000, 0x3000, 0x4000, 0x10000


def words(arch: Arch, *values: int) -> bytes:
    return struct.pack(f"<{len(values)}{'Q' if arch.word == 8 else 'I'}", *values)


def head(arch: Arch, kind: int, following: int = 0, offset: bool = True) -> bytes:
    return words(arch, following, 0, CODE, CODE + 100, 0) + struct.pack("<ii", kind, 0) + words(arch, *[0] * offset)


def with_procedure(arch: Arch, offset: bool) -> Memory:
    memory = Memory()
    memory.put(LIST, struct.pack("<II", 0, 5) + words(arch, INFO))
    union = words(arch, NAME, 0) + struct.pack("<Ii", 0, 0) + words(arch, REGION)
    memory.put(INFO, head(arch, RegionFormat.DYNAMIC, offset=offset) + union + b"\xcc" * 32)
    op = struct.pack("<bbhi", Tag.ADD, 0, 7, 3) + words(arch, -8 & arch.mask)
    stop = struct.pack("<bbhi", Tag.STOP, 0, 0, -1) + words(arch, 0)
    memory.put(REGION, words(arch, 0) + struct.pack("<iI", 50, 3) + op + stop + b"\xff" * 16)
    memory.put(NAME, b"made at run time\0")
    return memory


@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("arch", [X86_64, I386, AARCH64], ids=lambda arch: arch.name)
def test_both_layouts_are_read_in_both_word_sizes(arch: Arch, offset: bool) -> None:
    reader = DynReader(with_procedure(arch, offset).read, arch)
    found = reader.read_heads(LIST)
    assert (found.generation, found.heads, found.whole) == (5, (Head(INFO, CODE, CODE + 100, 0, 0),), True)
    info = reader.read_info(found.heads[0], usual=not offset)
    assert (info.with_offset, info.sure, info.name) == (offset, True, "made at run time")
    assert info.regions[0].insn_count == 50
    assert info.regions[0].ops == (Op(Tag.ADD, 7, 3, -8),)


@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5])
def test_layout_of_tables_is_told_by_what_they_point_to(kind: int, offset: bool) -> None:
    memory = Memory()
    memory.put(INFO, head(X86_64, kind, offset=offset) + words(X86_64, 0, 0x5000, 4, 0x6000) + bytes(64))
    memory.put(0x5000, bytes(64))
    memory.put(0x6000, bytes(64))
    info = DynReader(memory.read, X86_64).read_info(Head(INFO, CODE, CODE + 100, 0, kind), usual=not offset)
    assert (info.with_offset, info.segbase, info.table_len, info.table_data) == (offset, 0x5000, 4, 0x6000)


def test_information_that_fits_both_layouts_is_read_like_its_neighbours() -> None:
    memory = Memory()
    memory.put(INFO, head(X86_64, RegionFormat.DYNAMIC) + bytes(64))
    for usual in (True, False):
        info = DynReader(memory.read, X86_64).read_info(Head(INFO, CODE, CODE + 100, 0, 0), usual)
        assert (info.with_offset, info.sure) == (usual, False)


def test_cycle_nowhere_and_other_versions_are_told() -> None:
    memory = Memory()
    memory.put(LIST, struct.pack("<IIQ", 0, 1, INFO))
    memory.put(INFO, head(X86_64, 0, following=INFO))
    reader = DynReader(memory.read, X86_64)
    assert (len(reader.read_heads(LIST).heads), reader.read_heads(LIST).whole) == (1, False)
    memory.put(INFO, head(X86_64, 0, following=0xDEAD000))
    assert reader.read_heads(LIST).whole is False
    memory.put(LIST, struct.pack("<IIQ", 3, 1, INFO))
    with pytest.raises(FormatError, match="unknown version 3"):
        reader.read_heads(LIST)


def test_endless_list_ends() -> None:
    memory = Memory()
    memory.put(LIST, struct.pack("<IIQ", 0, 1, INFO))

    def read(avma: int, size: int) -> bytes:
        return memory.read(avma, size) or struct.pack("<QQQQQii", avma + 64, 0, CODE, CODE + 9, 0, 0, 0)[:size]

    found = DynReader(read, X86_64).read_heads(LIST)
    assert len(found.heads) <= MAX_INFOS
    assert found.whole is False


@pytest.mark.parametrize(
    ("place", "data"),
    [
        (REGION, struct.pack("<QiI", REGION, 1, 0)),  # a circular list of regions
        (REGION, struct.pack("<QiI", 0, 1, 0xFFFFFFFF)),  # 64 GiB of directives
        (REGION, struct.pack("<QiI", 0, 1, 1) + b"\x63" + bytes(15)),  # an unknown directive
        (INFO, struct.pack("<QQQQQii", 0, 0, CODE, CODE + (1 << 60), 0, 0, 0)),
    ],
)
def test_monstrous_procedures_are_refused(place: int, data: bytes) -> None:
    memory = with_procedure(X86_64, True)
    memory.pieces[place][: len(data)] = data
    reader = DynReader(memory.read, X86_64)
    with pytest.raises(FormatError):
        reader.read_info(reader.read_heads(LIST).heads[0], usual=True)


def test_monstrous_tables_are_refused() -> None:
    for length in (0, 1 << 60, 1 << 63):
        memory = Memory()
        memory.put(INFO, head(X86_64, 2) + words(X86_64, 0, 0x5000, length, 0x5000) + bytes(64))
        memory.put(0x5000, bytes(64))
        with pytest.raises(FormatError):
            DynReader(memory.read, X86_64).read_info(Head(INFO, CODE, CODE + 100, 0, 2), usual=True)


@given(st.data())
def test_any_memory_is_read_without_another_exception(data: st.DataObject) -> None:
    memory = with_procedure(X86_64, data.draw(st.booleans()))
    for avma in (LIST, INFO, REGION):
        piece = memory.pieces[avma]
        for _ in range(data.draw(st.integers(0, 4))):
            piece[data.draw(st.integers(0, len(piece) - 1))] = data.draw(st.integers(0, 255))
    reader = DynReader(memory.read, X86_64)
    try:
        for found in reader.read_heads(LIST).heads:
            info = reader.read_info(found, usual=True)
            if found.format != RegionFormat.DYNAMIC:
                table = open_table(info, memory.read, X86_64, Diagnostics())
                if table is not None:
                    table.function_at(found.start)
    except FormatError:
        pass


@pytest.mark.parametrize(
    ("arch", "code", "expected"),
    [
        (X86_64, "488d05f00f0000c3", (0x5000 + 7 + 0xFF0, False)),
        (X86_64, "f30f1efa488d05f00f0000c3", (0x5000 + 11 + 0xFF0, False)),
        (X86_64, "554889e5488d05f0ffffff5dc3", (0x5000 + 11 - 16, False)),
        (X86_64, "488b05f00f0000c3", (0x5000 + 7 + 0xFF0, True)),
        (X86_64, "488d0df00f0000c3", None),
        (X86_64, "488d05f00f", None),
        (AARCH64, "000000b000404091c0035fd6", None),
        (AARCH64, "000000b000400091c0035fd6", (0x6010, False)),
        (AARCH64, "5f2403d5000000b0000840f9c0035fd6", (0x6010, True)),
        (I386, "488d05f00f0000c3", None),
    ],
)
def test_exported_function_tells_where_the_hidden_list_is(
    arch: Arch, code: str, expected: tuple[int, bool] | None
) -> None:
    assert decode_getter(bytes.fromhex(code), 0x5000, arch) == expected


@pytest.mark.system
def test_shared_libunwind_of_this_machine_is_understood() -> None:
    from pyprof.objfile.elf_file import ElfFile
    from pyprof.unwind.formats.libunwind_registrations import find_list
    from tests.support import missing

    library = Path("/usr/lib/x86_64-linux-gnu/libunwind.so.8")
    if not library.exists():
        missing("needs libunwind: apt-get install libunwind-dev")
    elf = ElfFile.open(str(library))
    found = find_list(elf, X86_64, None)
    assert found is not None
    assert not found[1]
    section = next(s for s in elf.section_list if s.addr <= found[0] < s.addr + s.size and s.addr)
    assert section.name in (".bss", ".data")
