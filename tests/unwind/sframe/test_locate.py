"""Tests of locating the SFrame section by name, type and segment, in files and in memory."""

from __future__ import annotations

import gzip
import struct

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import X86_64
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.sframe_source import SFrame, open_sframe, read_sframe
from tests.unwind.sframe.fixtures import FOLDER, load

SHOFF = 40


def raw(name: str) -> bytes:
    return gzip.decompress((FOLDER / f"{name}.gz").read_bytes())


def source_of(data: bytes) -> SFrame | None:
    return open_sframe(ElfFile.from_bytes(data, "changed"), X86_64, Diagnostics())


def functions_of(data: bytes) -> list[object]:
    source = source_of(data)
    assert source is not None
    return list(source.functions())


def without_section_headers(data: bytes) -> bytes:
    return data[:SHOFF] + bytes(8) + data[SHOFF + 8 : 60] + bytes(4) + data[64:]


@pytest.mark.parametrize("name", ["v1-code.so", "v2-code.so", "v3-code.so"])
def test_section_is_found_by_segment_where_there_are_no_section_headers(name: str) -> None:
    assert functions_of(without_section_headers(raw(name))) == functions_of(raw(name))


def test_section_is_found_by_type_where_it_bears_another_name() -> None:
    data = raw("llvm-code.so")  # gold writes no PT_GNU_SFRAME segment
    assert functions_of(data.replace(b".sframe\0", b".stacks\0")) == functions_of(data)


def test_section_is_found_by_segment_where_name_and_type_are_foreign() -> None:
    data = raw("v1-code.so")
    assert functions_of(data.replace(b".sframe\0", b".stacks\0")) == functions_of(data)


def test_file_without_section_has_no_source() -> None:
    data = raw("llvm-code.so").replace(b".sframe\0", b".stacks\0")
    assert source_of(data.replace(struct.pack("<I", 0x6FFFFFF4), struct.pack("<I", 1))) is None


def test_segment_past_the_end_of_the_file_is_a_format_error() -> None:
    elf = ElfFile.from_bytes(raw("v2-code.so"), "whole")
    data = without_section_headers(raw("v2-code.so"))[: elf.sections[".sframe"].offset + 60]
    with pytest.raises(FormatError):
        source_of(data)


def test_section_in_memory_reads_as_in_the_file_but_for_the_bias() -> None:
    elf, arch = load("v3-code.so")
    section, bias = elf.section(".sframe"), 0x7FFF_1234_5000
    assert section is not None
    addr = elf.sections[".sframe"].addr
    there = list(read_sframe(section, addr, arch).functions())
    here = list(read_sframe(bytes(section) + b"whatever follows", addr + bias, arch).functions())
    assert [(f.start + bias, f.end + bias, f.rules) for f in there] == [(f.start, f.end, f.rules) for f in here]


def test_relocations_of_an_object_file_are_those_that_the_linker_applies() -> None:
    relocatable, linked = functions_of(raw("llvm-relocatable.o")), functions_of(raw("llvm-x86_64.so"))
    assert relocatable
    bias = linked[0].start - relocatable[0].start  # type: ignore[attr-defined]
    assert [(f.start + bias, f.rules) for f in relocatable] == [(f.start, f.rules) for f in linked]  # type: ignore[attr-defined]
