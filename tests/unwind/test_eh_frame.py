"""Tests of .eh_frame with and without .eh_frame_hdr."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import I386, X86_64
from pyprof.model.unwind_result import Trust
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_cie_and_fde import CfiEntries
from pyprof.unwind.formats.cfi_sections import BROKEN_TABLE, NO_TABLE, EhFrame, open_eh_frame
from tests.unwind.cfi_assembler import Frames, advance, algebra, def_cfa_offset

HDR = 0x8000


def three_functions(**layout: object) -> Frames:
    """Return a section with f at 0x1000..0x1020, g at 0x1020..0x1030, a gap, and h at 0x1100..0x1200."""
    frames = Frames(**layout)  # type: ignore[arg-type]
    cie = frames.cie()
    frames.fde(cie, 0x1020, 0x10, advance(2), def_cfa_offset(32))
    frames.fde(cie, 0x1100, 0x100, advance(4), def_cfa_offset(64))
    frames.fde(frames.cie(), 0x1000, 0x20, advance(1), def_cfa_offset(16))
    frames.terminator()
    return frames


def covered(source: EhFrame, *svmas: int) -> list[int | None]:
    """Return the start of the function that covers each address, or None."""
    found = [source.function_at(svma) for svma in svmas]
    return [f.start if f else None for f in found]


EDGES = (0, 0xFFF, 0x1000, 0x101F, 0x1020, 0x102F, 0x1030, 0x10FF, 0x1100, 0x11FF, 0x1200, (1 << 64) - 1)
EDGES_COVERED = [None, None, 0x1000, 0x1000, 0x1020, 0x1020, None, None, 0x1100, 0x1100, None, None]


@pytest.mark.parametrize("encoding", [0x3B, 0x3C, 0x33, 0x34, 0x03, 0x04, 0x00, 0x0B, 0x1B, 0x1C, 0x30])
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_every_table_encoding_finds_the_function(encoding: int, byteorder: str) -> None:
    frames = three_functions(byteorder=byteorder)
    # Unsigned offsets cannot reach back.
    svma = 0x800 if encoding in (0x33, 0x34, 0x30) else HDR
    diagnostics = Diagnostics()
    source = frames.eh_frame(frames.hdr(svma, encoding), svma, diagnostics)
    assert covered(source, *EDGES) == EDGES_COVERED
    assert not diagnostics.counts


def test_32_bit_table_finds_the_function() -> None:
    frames = three_functions(word=4)
    diagnostics = Diagnostics()
    source = frames.eh_frame(frames.hdr(HDR), HDR, diagnostics, I386)
    assert covered(source, *EDGES) == EDGES_COVERED
    assert not diagnostics.counts


def test_rows_come_in_svma() -> None:
    frames = three_functions()
    found = frames.eh_frame(frames.hdr(HDR), HDR, Diagnostics()).function_at(0x1111)
    assert found is not None
    assert (found.start, found.end, found.starts) == (0x1100, 0x1200, (0x1100, 0x1104))
    assert algebra(found)[1] == "+0x4 cfa = sp + 64; ra = [cfa - 8]"


def test_source_tells_its_name_and_trust() -> None:
    source = three_functions().eh_frame(None, 0, Diagnostics())
    assert (source.name, source.trust) == ("eh_frame", Trust.EH_FRAME)


def test_without_a_table_the_section_is_indexed_and_that_is_counted() -> None:
    diagnostics = Diagnostics()
    source = three_functions().eh_frame(None, 0, diagnostics)
    assert covered(source, *EDGES) == EDGES_COVERED
    assert diagnostics.counts == {NO_TABLE: 1}


def _swapped(frames: Frames) -> bytes:
    return frames.hdr(HDR, entries=sorted(frames.fdes)[::-1])


def _lying(frames: Frames) -> bytes:
    """Return a table whose entries refer to the FDEs of other functions."""
    starts, offsets = zip(*sorted(frames.fdes), strict=True)
    return frames.hdr(HDR, entries=list(zip(starts, offsets[1:] + offsets[:1], strict=True)))


def _to_a_cie(frames: Frames) -> bytes:
    return frames.hdr(HDR, entries=[(start, 0) for start, _ in sorted(frames.fdes)])


def _outside(frames: Frames) -> bytes:
    return frames.hdr(HDR, entries=[(start, 1 << 20) for start, _ in sorted(frames.fdes)])


def _of_another_section(frames: Frames) -> bytes:
    table = bytearray(frames.hdr(HDR))
    table[4] ^= 0x40
    return bytes(table)


def _patched(at: int, value: int) -> Callable[[Frames], bytes]:
    def patch(frames: Frames) -> bytes:
        table = bytearray(frames.hdr(HDR))
        table[at] = value
        return bytes(table)

    return patch


@pytest.mark.parametrize(
    ("table", "counted"),
    [
        (_swapped, BROKEN_TABLE),
        (_lying, BROKEN_TABLE),
        (_to_a_cie, BROKEN_TABLE),
        (_outside, BROKEN_TABLE),
        (_of_another_section, BROKEN_TABLE),
        (lambda frames: frames.hdr(HDR, count=1 << 30), BROKEN_TABLE),
        (lambda frames: frames.hdr(HDR)[:-1], BROKEN_TABLE),
        (lambda frames: frames.hdr(HDR)[:7], BROKEN_TABLE),
        (lambda frames: b"", BROKEN_TABLE),
        (_patched(0, 2), BROKEN_TABLE),
        (_patched(1, 0x0F), BROKEN_TABLE),
        (_patched(2, 0x80), BROKEN_TABLE),
        (_patched(3, 0xBB), BROKEN_TABLE),
        (_patched(3, 0x39), BROKEN_TABLE),
        (_patched(3, 0x2B), BROKEN_TABLE),
        (_patched(3, 0x0B), BROKEN_TABLE),
        (_patched(2, 0xFF), NO_TABLE),
        (_patched(3, 0xFF), NO_TABLE),
        (lambda frames: frames.hdr(HDR, count=0), NO_TABLE),
    ],
)
def test_table_that_cannot_be_right_gives_way_to_an_index(table: Callable[[Frames], bytes], counted: str) -> None:
    frames, diagnostics = three_functions(), Diagnostics()
    source = frames.eh_frame(table(frames), HDR, diagnostics)
    assert covered(source, *EDGES) == EDGES_COVERED
    assert diagnostics.counts == {counted: 1}


def test_header_without_the_pointer_to_its_section_is_believed() -> None:
    frames, diagnostics = three_functions(), Diagnostics()
    table = bytearray(frames.hdr(HDR, encoding=0x03))
    table[1] = 0xFF
    del table[4:8]
    assert covered(frames.eh_frame(bytes(table), HDR, diagnostics), *EDGES) == EDGES_COVERED
    assert not diagnostics.counts


BOTH = pytest.mark.parametrize("with_table", [True, False], ids=["table", "index"])


def source_of(frames: Frames, with_table: bool) -> EhFrame:
    return frames.eh_frame(frames.hdr(HDR) if with_table else None, HDR, Diagnostics())


@BOTH
def test_function_inside_another_one_is_preferred(with_table: bool) -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x100)
    frames.fde(cie, 0x1040, 0x10)
    source = source_of(frames, with_table)
    assert covered(source, 0x103F, 0x1040, 0x104F, 0x1050) == [0x1000, 0x1040, 0x1040, 0x1000]


@BOTH
def test_of_equal_starts_the_tightest_is_taken_and_of_equal_ranges_the_first(with_table: bool) -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x40, def_cfa_offset(16))
    frames.fde(cie, 0x1000, 0x20, def_cfa_offset(24))
    frames.fde(cie, 0x1000, 0x20, def_cfa_offset(32))
    frames.fde(cie, 0x1000, 0x80, def_cfa_offset(40))
    source = source_of(frames, with_table)
    found = [source.function_at(svma) for svma in (0x1000, 0x101F, 0x1020, 0x1040, 0x107F, 0x1080)]
    assert [f and f.rules[0].cfa_off for f in found] == [24, 24, 16, 40, 40, None]


@BOTH
def test_empty_functions_are_passed_over(with_table: bool) -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x40)
    for _ in range(3):
        frames.fde(cie, 0x1010, 0)
    assert covered(source_of(frames, with_table), 0x1010, 0x103F) == [0x1000, 0x1000]


@BOTH
def test_terminator_between_contributions_does_not_end_the_section(with_table: bool) -> None:
    frames = Frames()
    frames.fde(frames.cie(), 0x1000, 0x40)
    frames.terminator()
    frames.fde(frames.cie(), 0x2000, 0x40)
    frames.terminator()
    assert covered(source_of(frames, with_table), 0x1000, 0x2000) == [0x1000, 0x2000]


def test_terminator_ends_a_section_whose_end_is_not_known() -> None:
    frames = Frames()
    frames.fde(frames.cie(), 0x1000, 0x40)
    frames.terminator()
    frames.fde(frames.cie(), 0x2000, 0x40)
    source = EhFrame(frames.section(), None, X86_64, Diagnostics(), stop_at_terminator=True)
    assert covered(source, 0x1000, 0x2000) == [0x1000, None]


def test_what_comes_before_a_break_in_the_section_is_used_and_the_break_is_counted() -> None:
    frames, diagnostics = Frames(), Diagnostics()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x40)
    frames.data += b"\xf0\xff\xff\x7f"
    frames.fde(cie, 0x2000, 0x40)
    assert covered(frames.eh_frame(None, 0, diagnostics), 0x1000, 0x2000) == [0x1000, None]
    assert diagnostics.counts == {NO_TABLE: 1, "cfi_section_truncated:.eh_frame": 1}


def test_functions_of_a_broken_cie_are_left_out_and_counted() -> None:
    frames, diagnostics = Frames(), Diagnostics()
    broken, good = frames.cie(version=9), frames.cie()
    frames.fde(broken, 0x1000, 0x40)
    frames.fde(broken, 0x1040, 0x40)
    frames.fde(good, 0x2000, 0x40)
    assert covered(frames.eh_frame(None, 0, diagnostics), 0x1000, 0x1040, 0x2000) == [None, None, 0x2000]
    assert diagnostics.counts == {NO_TABLE: 1, "cie_unreadable:.eh_frame": 2}


def test_entries_of_the_64_bit_format_are_indexed_among_the_others() -> None:
    frames = Frames()
    frames.fde(frames.cie(), 0x1000, 0x40)
    frames.wide = True
    cie = frames.cie()
    frames.fde(cie, 0x2000, 0x40)
    frames.wide = False
    frames.fde(cie, 0x3000, 0x40)
    assert covered(frames.eh_frame(None, 0, Diagnostics()), 0x1000, 0x2000, 0x3000) == [0x1000, 0x2000, 0x3000]


def test_functions_are_listed_ascending_and_broken_ones_counted() -> None:
    frames, diagnostics = three_functions(), Diagnostics()
    frames.data = frames.data[:-4]
    frames.fde(frames.cie(), 0x1080, 4, b"\x3f")
    source = frames.eh_frame(frames.hdr(HDR), HDR, diagnostics)
    assert [f.start for f in source.functions()] == [0x1000, 0x1020, 0x1100]
    assert diagnostics.counts == {"cfi_function_broken:.eh_frame": 1}
    with pytest.raises(FormatError, match="unknown instruction 0x3f"):
        source.function_at(0x1080)


def test_empty_section_covers_nothing() -> None:
    assert covered(Frames().eh_frame(None, 0, Diagnostics()), 0, 0x1000) == [None, None]


@pytest.mark.parametrize(("nested", "found"), [(60, 0x1000), (5000, None)])
def test_deep_overlap_is_looked_into_up_to_a_limit(nested: int, found: int | None) -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x10000)
    for start in range(0x1001, 0x1001 + nested):
        frames.fde(cie, start, 1)
    assert covered(frames.eh_frame(None, 0, Diagnostics()), 0x1000 + nested, 0x9000) == [0x1000 + nested, found]


def test_file_without_the_section_has_no_source() -> None:
    elf = ElfFile.from_bytes(_ELF_HEADER, "empty")
    assert open_eh_frame(elf, X86_64, Diagnostics()) is None


_ELF_HEADER = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)


@pytest.fixture(scope="module")
def libc() -> ElfFile:
    """Return the C library of this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return ElfFile.open(next(line.split()[5] for line in lines if "/libc.so" in line or "/libc-2" in line))


def test_own_libc_is_found_through_its_table(libc: ElfFile) -> None:
    diagnostics = Diagnostics()
    source = open_eh_frame(libc, X86_64, diagnostics)
    assert source is not None
    functions = list(source.functions())
    assert len(functions) > 1000
    assert not diagnostics.counts
    for function in functions[:: len(functions) // 200]:
        assert source.function_at(function.start) == function
        assert source.function_at(function.end - 1) == function


def test_index_and_table_agree_on_every_function_of_libc(libc: ElfFile) -> None:
    data = libc.section(".eh_frame")
    assert data is not None
    through_table = open_eh_frame(libc, X86_64, Diagnostics())
    assert through_table is not None
    section = through_table._table.entries.section
    through_index = EhFrame(section, None, X86_64, Diagnostics())
    entries = CfiEntries(section)
    for offset in through_index._table.index.offset.tolist()[::7]:
        fde = entries.fde(offset)
        for svma in (fde.start - 1, fde.start, fde.end - 1, fde.end):
            assert through_table._find(svma) == through_index._find(svma)
