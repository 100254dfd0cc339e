"""Tests of finding DWARF units by address: .debug_aranges, broken sets, and units that it lacks."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pyprof.objfile.elf_file import ElfFile
from pyprof.symbolize.dwarf_attribute_forms import Data, Deadline
from pyprof.symbolize.dwarf_source_lines import SourceLines
from pyprof.symbolize.dwarf_units import read_aranges
from tests.support import build

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "programs"


def aranges_set(unit: int, *pairs: tuple[int, int], size: int = 8, order: str = "<", wide: bool = False) -> bytes:
    """Return a set padded to a multiple of a pair, with the terminating pair of zeros."""
    head = struct.pack(f"{order}H{'Q' if wide else 'I'}BB", 2, unit, size, 0)
    first = (12 if wide else 4) + len(head)
    body = head + bytes(-first % (2 * size))
    body += b"".join(struct.pack(order + ("QQ" if size == 8 else "II"), *pair) for pair in (*pairs, (0, 0)))
    length = struct.pack(f"{order}IQ", 0xFFFFFFFF, len(body)) if wide else struct.pack(f"{order}I", len(body))
    return length + body


def section(content: bytes, order: str = "little") -> Data:
    return Data(".debug_aranges", memoryview(content), order)


@pytest.mark.parametrize(("size", "wide"), [(8, False), (4, False), (8, True), (4, True)])
@pytest.mark.parametrize("order", ["little", "big"])
def test_unit_is_found_by_address(size: int, wide: bool, order: str) -> None:
    sign = "<" if order == "little" else ">"
    content = aranges_set(0x10, (0x2000, 0x100), (0x1000, 0x10), size=size, wide=wide, order=sign)
    content += aranges_set(0x90, (0x3000, 0x20), (0, 0x50), size=size, wide=wide, order=sign)
    found = read_aranges(section(content, order))
    at = {svma: found.find(svma) for svma in (0x0, 0x4F, 0x50, 0x1000, 0x100F, 0x1010, 0x20FF, 0x2100, 0x3000, 0x301F)}
    assert at == {
        0x0: 0x90,
        0x4F: 0x90,
        0x50: None,
        0x1000: 0x10,
        0x100F: 0x10,
        0x1010: None,
        0x20FF: 0x10,
        0x2100: None,
        0x3000: 0x90,
        0x301F: 0x90,
    }


def test_offset_of_a_unit_may_be_any_number() -> None:
    found = read_aranges(section(aranges_set((1 << 64) - 1, (0x1000, 1), wide=True)))
    assert found.find(0x1000) == (1 << 64) - 1


def test_empty_range_covers_nothing() -> None:
    found = read_aranges(section(aranges_set(0x10, (0x1000, 0), (0x2000, 1))))
    assert (found.find(0x1000), found.find(0x2000)) == (None, 0x10)


def test_what_follows_the_pair_of_zeros_is_not_read() -> None:
    content = aranges_set(0x10, (0x1000, 1), (0, 0), (0x2000, 1))
    assert read_aranges(section(content)).find(0x2000) is None


@pytest.mark.parametrize("cut", [0, 1, 5, 11, 12, 16, 31, 47])
def test_set_that_is_cut_off_ends_the_list(cut: int) -> None:
    whole = aranges_set(0x10, (0x1000, 0x10))
    found = read_aranges(section(whole + aranges_set(0x20, (0x2000, 0x10))[:cut]))
    assert found.find(0x1000) == 0x10


def test_addresses_of_a_strange_size_end_the_list() -> None:
    broken = bytearray(aranges_set(0x20, (0x2000, 0x10)))
    broken[10] = 3
    content = aranges_set(0x10, (0x1000, 0x10)) + bytes(broken) + aranges_set(0x30, (0x3000, 0x10))
    found = read_aranges(section(content))
    assert (found.find(0x1000), found.find(0x3000)) == (0x10, None)


def test_lines_of_named_code_need_no_other_unit(tmp_path: Path) -> None:
    program = build(PROGRAMS / "inlines.cc", tmp_path / "inlines", "-O2", "-g", compiler="g++")
    file = ElfFile.open(str(program))
    lines = SourceLines(file)
    aranges = lines._dwarf.aranges
    assert len(aranges.start)
    assert lines.find(int(aranges.start[-1]), Deadline(None))
    assert "offsets" not in vars(lines._dwarf)
    assert lines.find(1, Deadline(None)) == []
    assert "offsets" in vars(lines._dwarf)
