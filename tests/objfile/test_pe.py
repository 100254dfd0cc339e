"""Tests of Windows modules in memory: the module of an address, and hostile headers."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace, Mapping, StatedId
from pyprof.model.arch import X86_64
from pyprof.objfile.pe import PeFile, PeImage, find_windows_module
from pyprof.symbolize.elf_symtab import read_symbol_rows, read_symbol_sources
from tests.unwind.windows_module import BASE as MODULE_BASE
from tests.unwind.windows_module import TEXT, XDATA, windows_module

BASE, SIZE = 0x1_8000_0000, 0x5000
GUID = bytes(range(16))


def headers(machine: int = 0x8664, *, debug: bool = True, size: int = SIZE) -> bytes:
    wide = machine in (0x8664, 0xAA64)
    optional = struct.pack("<H", 0x20B if wide else 0x10B).ljust(56, b"\0") + struct.pack("<I", size)
    optional = optional.ljust(108 if wide else 92, b"\0") + struct.pack("<I", 16) + bytes(48)
    optional += struct.pack("<II", 0x400 if debug else 0, 28)
    coff = struct.pack("<HHIIIHH", machine, 3, 0, 0, 0, 240, 0x2022)
    head = b"MZ".ljust(60, b"\0") + struct.pack("<I", 0x80)
    head = (head.ljust(0x80, b"\0") + b"PE\0\0" + coff + optional).ljust(0x400, b"\0")
    record = b"RSDS" + GUID + struct.pack("<I", 3) + b"C:\\build\\app.pdb\0"
    return (head + struct.pack("<IIHHIIII", 0, 0, 0, 0, 2, len(record), 0x480, 0x480)).ljust(0x480, b"\0") + record


def space(content: bytes, *mappings: Mapping) -> AddressSpace:
    def read(avma: int, size: int) -> bytes:
        at = avma - BASE
        return content[at : at + size] if at >= 0 else b""

    known = mappings or (
        Mapping(BASE, BASE + 0x1000, "r--p", 0, "8:1", 5, "/wine/app.dll"),
        Mapping(BASE + 0x1000, BASE + 0x3000, "r-xp", 0, "0:0", 0, ""),
    )
    return AddressSpace(0, 1, 0, known, read, "/")


def test_code_that_was_copied_behind_the_headers_is_of_their_module() -> None:
    for avma in (BASE, BASE + 0x1234, BASE + SIZE - 1):
        found = find_windows_module(space(headers()), avma)
        assert found is not None
        module, stated = found
        assert (module.start, module.end, module.path) == (BASE, BASE + SIZE, "/wine/app.dll")
        assert stated.debug_id == "03020100050407060809" + "0A0B0C0D0E0F3"
        assert stated.name == "app.pdb"
        assert (stated.elf_machine, stated.elf_class) == (62, 64)


def test_code_behind_the_image_is_not_its() -> None:
    assert find_windows_module(space(headers()), BASE + SIZE) is None
    assert find_windows_module(space(headers()), BASE - 1) is None


def test_file_nearest_below_decides() -> None:
    other = Mapping(BASE + 0x1000, BASE + 0x2000, "r-xp", 0, "8:1", 6, "/usr/lib/libother.so")
    first = Mapping(BASE, BASE + 0x1000, "r--p", 0, "8:1", 5, "/wine/app.dll")
    assert find_windows_module(space(headers(), first, other), BASE + 0x1800) is None


def test_module_of_32_bits_or_without_pdb_is_known_as_such() -> None:
    found = find_windows_module(space(headers(0x14C, debug=False)), BASE + 0x1000)
    assert found is not None
    assert (found[1].elf_machine, found[1].elf_class, found[1].debug_id, found[1].name) == (3, 32, "", "app.dll")


def test_what_is_no_such_module_is_none() -> None:
    assert find_windows_module(space(b"\x7fELF" + bytes(4096)), BASE + 0x1000) is None
    assert find_windows_module(space(headers(0x200)), BASE + 0x1000) is None
    assert find_windows_module(space(b""), BASE + 0x1000) is None


@given(st.lists(st.tuples(st.integers(0, 0x4B0), st.binary(min_size=1, max_size=8)), max_size=6), st.integers(0, 0x4B0))
def test_hostile_headers_give_a_module_or_none(changes: list[tuple[int, bytes]], length: int) -> None:
    content = bytearray(headers())
    for at, data in changes:
        content[at : at + len(data)] = data
    for whole in (bytes(content), bytes(content[:length])):
        found = find_windows_module(space(whole), BASE + 0x1000)
        if found is not None:
            made = PeImage(*found, space(whole).read)
            assert all(0 <= s.addr < made.size and s.addr + s.size <= made.size for s in made.section_list)


def sections(*rows: tuple[bytes, int, int, int]) -> bytes:
    """Return headers with section headers of (name, rva, size, flags)."""
    table = b"".join(struct.pack("<8sIIII12xI", name, size, rva, size, rva, flags) for name, rva, size, flags in rows)
    content = bytearray(headers())
    content[0x80 + 6 : 0x80 + 8] = struct.pack("<H", len(rows))
    at = 0x80 + 24 + 240
    content[at : at + len(table)] = table
    return bytes(content)


def image(content: bytes) -> PeImage:
    found = find_windows_module(space(content), BASE)
    assert found is not None
    return PeImage(*found, space(content).read)


CODE, DATA, DEBUG_DATA = 0x6000_0020, 0x4000_0040, 0x4200_0040


def test_module_has_the_sections_that_stay_in_memory() -> None:
    content = sections(
        (b".text", 0x1000, 0x1800, CODE), (b".rdata", 0x3000, 0x100, DATA), (b"/4", 0x4000, 64, DEBUG_DATA)
    )
    made = image(content.ljust(0x1000, b"\0") + b"\x90" * 0x1800)
    assert made.is_here is False
    assert made.arch is X86_64
    assert [(s.name, s.addr, s.size, s.executable) for s in made.section_list] == [
        (".text", 0x1000, 0x1800, True),
        (".rdata", 0x3000, 0x100, False),
    ]
    assert [(s.vaddr, s.memsz, s.executable) for s in made.loads] == [(0x1000, 0x1800, True)]
    assert bytes(made.section(".text") or b"") == b"\x90" * 0x1800
    assert made.section(".eh_frame") is None
    assert made.unwind_table(".eh_frame") is None


EXPORTED = {"b_second": TEXT + 16, "a_first": TEXT}
SYMBOLS = {"short": TEXT, "a_name_of_more_than_8_letters": TEXT + 16, "leaf": TEXT + 40}
FUNCTIONS = ((TEXT, TEXT + 12, XDATA), (TEXT + 16, TEXT + 32, XDATA))
MADE = windows_module(b"\x90" * 64, FUNCTIONS, b"\1\0\0\0", EXPORTED, SYMBOLS)


def named(file: PeFile, table: str, strings: str) -> dict[str, tuple[int, int]]:
    """Return (offset in .text, size) of each symbol by name."""
    rows = read_symbol_rows(file, table, strings)
    assert rows is not None
    texts = [bytes(rows.strings[at:]).split(b"\0")[0].decode() for at in rows.name.tolist()]
    places = zip(rows.start.tolist(), rows.size.tolist(), strict=True)
    return {text: (start - MODULE_BASE - TEXT, size) for text, (start, size) in zip(texts, places, strict=True)}


def test_file_has_its_sections_and_names() -> None:
    file = PeFile.from_bytes(MADE, "made")
    assert (file.arch, file.min_vaddr, file.is_here, file.missing) == (X86_64, MODULE_BASE, True, 0)
    assert bytes(file.at_svma(MODULE_BASE + TEXT + 60, 16)) == b"\x90" * 4
    assert named(file, ".symtab", ".strtab") == {
        "short": (0, 12),
        "a_name_of_more_than_8_letters": (16, 16),
        "leaf": (40, windows_module_size() - TEXT - 40),
    }
    assert named(file, ".dynsym", ".dynstr") == {"a_first": (0, 12), "b_second": (16, 16)}
    assert file.named_symbols([b"a_first", b"none"]) == {b"a_first": MODULE_BASE + TEXT}


def windows_module_size() -> int:
    return PeFile.from_bytes(MADE, "made").headers.image_size


def test_file_without_a_pdb_is_known_by_time_stamp_and_size() -> None:
    file = PeFile.from_bytes(MADE, "made")
    stated = StatedId("", "", "made.exe", 62, 64, "little", 0, 0x1234, windows_module_size())
    assert file.is_stated(stated)
    assert not file.is_stated(replace(stated, time_stamp=0x1235))
    assert not file.is_stated(replace(stated, image_size=0x1000))
    nameless = PeFile.from_bytes(windows_module(b"", (), b"", time_stamp=0), "made")
    assert not nameless.is_stated(replace(stated, time_stamp=0))


@pytest.mark.parametrize("size", [0, 2, 63, 0x84, 0x90, 0x100])
def test_file_that_ends_in_its_headers_is_an_error(size: int) -> None:
    with pytest.raises(FormatError):
        PeFile.from_bytes(MADE[:size], "made")


@given(st.lists(st.tuples(st.integers(0, len(MADE)), st.binary(min_size=1, max_size=8)), max_size=6))
def test_hostile_file_gives_symbols_or_an_error(changes: list[tuple[int, bytes]]) -> None:
    content = bytearray(MADE)
    for at, data in changes:
        content[at : at + len(data)] = data
    with suppress(FormatError):
        file = PeFile.from_bytes(bytes(content), "made")
        read_symbol_sources(file, lambda: None)


def test_section_past_the_end_of_the_module_ends_with_it() -> None:
    made = image(sections((b".text", 0x4000, 0x9000, CODE), (b".far", SIZE, 16, CODE)))
    assert [(s.name, s.size) for s in made.section_list] == [(".text", SIZE - 0x4000)]


def test_module_without_sections_is_code_as_a_whole() -> None:
    assert [(s.vaddr, s.memsz, s.executable) for s in image(headers(debug=False)[:0x200]).loads] == [(0, SIZE, True)]
