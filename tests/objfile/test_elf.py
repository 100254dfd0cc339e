"""Tests of the ELF parser against pyelftools and readelf."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from pyprof.errors import FormatError
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_sections import inflate_section
from tests.objfile.live import library, where
from tests.support import need

pytestmark = pytest.mark.system


def tool(*command: str | Path) -> str:
    words = [need(str(command[0])), *(str(word) for word in command[1:])]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return where(tmp_path_factory.mktemp("elf"), "where", "-g", "-rdynamic")


def assert_like_pyelftools(path: Path) -> None:
    elf = ElfFile.open(str(path))
    with path.open("rb") as file:
        reference = ELFFile(file)
        assert (elf.elf_class, elf.entry) == (reference.elfclass, reference.header.e_entry)
        assert elf.byteorder == ("little" if reference.little_endian else "big")
        headers = [segment.header for segment in reference.iter_segments()]
        assert [(s.offset, s.vaddr, s.filesz, s.memsz, s.flags) for s in elf.segments] == [
            (h.p_offset, h.p_vaddr, h.p_filesz, h.p_memsz, h.p_flags) for h in headers
        ]
        for mine, other in zip(elf.section_list, reference.iter_sections(), strict=True):
            h = other.header
            assert (mine.name, mine.addr, mine.offset, mine.size, mine.flags, mine.link, mine.info, mine.entsize) == (
                other.name, h.sh_addr, h.sh_offset, h.sh_size, h.sh_flags, h.sh_link, h.sh_info, h.sh_entsize,
            )  # fmt: skip
            if mine.name and h.sh_type != "SHT_NOBITS" and elf.sections[mine.name] is mine:
                assert bytes(elf.section(mine.name) or b"") == other.data()


def test_headers_and_contents_are_those_of_pyelftools(program: Path, tmp_path: Path) -> None:
    assert_like_pyelftools(program)
    assert_like_pyelftools(library(tmp_path))


@pytest.mark.parametrize("target", ["elf32-little", "elf32-big", "elf64-big"])
def test_other_classes_and_byte_orders_are_read(target: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"some bytes")
    tool("objcopy", "-I", "binary", "-O", target, tmp_path / "data", tmp_path / "object")
    assert_like_pyelftools(tmp_path / "object")


def test_build_id_is_that_of_readelf(program: Path) -> None:
    notes = tool("readelf", "-n", program)
    expected = re.search(r"Build ID: ([0-9a-f]+)", notes)
    assert expected is not None
    assert ElfFile.open(str(program)).build_id == expected[1]


def test_no_build_id_is_empty(tmp_path: Path) -> None:
    assert ElfFile.open(str(where(tmp_path, "none", "-Wl,--build-id=none"))).build_id == ""


@pytest.mark.parametrize("form", ["zlib", "zlib-gnu"])
def test_compressed_sections_are_inflated(form: str, program: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    tool("objcopy", f"--compress-debug-sections={form}", program, packed)
    assert packed.stat().st_size < program.stat().st_size
    plain, elf = ElfFile.open(str(program)), ElfFile.open(str(packed))
    for name in (".debug_info", ".debug_line", ".debug_str", ".debug_abbrev"):
        assert elf.section(name) == plain.section(name)


def test_section_that_unpacks_to_nothing_is_absent(program: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    tool("objcopy", "--compress-debug-sections=zlib", program, packed)
    data, header = bytearray(packed.read_bytes()), ElfFile.open(str(packed)).sections[".debug_info"]
    empty = struct.pack("<IIQQ", 1, 0, 0, 1) + zlib.compress(b"")
    data[header.offset : header.offset + len(empty)] = empty
    assert ElfFile.from_bytes(bytes(data), "packed").section(".debug_info") is None


def test_bytes_behind_addresses_end_with_their_segment(program: Path) -> None:
    elf = ElfFile.open(str(program))
    text = elf.sections[".text"]
    assert elf.at_svma(text.addr, text.size) == elf.section(".text")
    load = next(load for load in elf.loads if load.vaddr <= text.addr < load.vaddr + load.filesz)
    assert len(elf.at_svma(load.vaddr + load.filesz - 3, 100)) == 3
    assert len(elf.at_svma(1 << 60, 10)) == 0


def without_section_headers(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)  # clears e_shoff
    data[60:64] = bytes(4)  # clears e_shnum and e_shstrndx
    return bytes(data)


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_sections_are_made_up_where_headers_are_missing(style: str, tmp_path: Path) -> None:
    program = where(tmp_path, "where", "-rdynamic", f"-Wl,--hash-style={style}")
    elf, bare = ElfFile.open(str(program)), ElfFile.from_bytes(without_section_headers(program), "bare")
    assert set(bare.sections) == {".eh_frame_hdr", ".eh_frame", ".dynamic", ".dynsym", ".dynstr"}
    for name in (".eh_frame_hdr", ".dynsym", ".dynstr", ".dynamic"):
        assert bare.section(name) == elf.section(name)
        assert bare.sections[name].addr == elf.sections[name].addr
    frames, known = bare.section(".eh_frame"), elf.section(".eh_frame")
    assert frames is not None
    assert known is not None
    assert frames[: len(known)] == known
    assert bare.build_id == elf.build_id
    assert bare.oddities == []


def test_broken_section_headers_are_an_oddity_not_an_error(program: Path) -> None:
    data = bytearray(program.read_bytes())
    data[40:48] = (1 << 40).to_bytes(8, "little")
    elf = ElfFile.from_bytes(bytes(data), "broken")
    assert elf.oddities == ["section_headers_broken"]
    assert elf.section_list == ()
    assert ".eh_frame" in elf.sections


def test_cut_off_section_names_section_and_offset(program: Path) -> None:
    elf = ElfFile.open(str(program))
    names = elf.sections[".strtab"]
    elf.sections[".strtab"] = replace(names, size=1 << 20)
    with pytest.raises(FormatError) as caught:
        elf.section(".strtab")
    assert (caught.value.section, caught.value.offset) == (".strtab", names.offset)


def test_compression_bomb_is_refused_before_it_is_inflated() -> None:
    packed = zlib.compress(bytes(1 << 20))
    header = (1).to_bytes(4, "little") + bytes(4) + (1 << 30).to_bytes(8, "little") + bytes(8)
    with pytest.raises(FormatError, match="claims"):
        inflate_section(".debug_info", memoryview(header + packed), 64, "little")
    short = (1).to_bytes(4, "little") + bytes(4) + (1 << 10).to_bytes(8, "little") + bytes(8)
    assert len(inflate_section(".debug_info", memoryview(short + packed), 64, "little")) == 1 << 10


def test_beginning_of_a_section_is_unpacked_alone() -> None:
    content = bytes(range(256)) * 64
    header = (1).to_bytes(4, "little") + bytes(4) + len(content).to_bytes(8, "little") + bytes(8)
    packed = memoryview(header + zlib.compress(content))
    assert bytes(inflate_section(".debug_info", packed, 64, "little", 1000)) == content[:1000]
    assert bytes(inflate_section(".debug_info", packed, 64, "little", 1 << 20)) == content
    with pytest.raises(FormatError, match="promised"):
        inflate_section(".debug_info", packed[:40], 64, "little", 1000)


def test_not_an_elf_file_is_a_format_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("#!/bin/sh\n")
    for path in (tmp_path / "text", Path("/dev/null")):
        with pytest.raises(FormatError):
            ElfFile.open(str(path))


@pytest.mark.parametrize(("place", "what"), [(54, "program headers"), (58, "section headers")])
def test_header_table_of_giant_entries_is_not_read(place: int, what: str, tmp_path: Path) -> None:
    """Refuse a table of 65,535 entries of 65,535 bytes in a sparse file, which would need 4 GiB."""
    data = bytearray(Path("/bin/true").read_bytes())
    struct.pack_into("<HH", data, place, 0xFFFF, 0xFFFE)
    path = tmp_path / "sparse"
    path.write_bytes(data)
    os.truncate(path, 1 << 40)
    if what == "program headers":
        with pytest.raises(FormatError, match=what):
            ElfFile.open(str(path))
    else:
        assert "section_headers_broken" in ElfFile.open(str(path)).oddities
