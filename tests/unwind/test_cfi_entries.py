"""Tests of CIEs and FDEs: layouts, versions, augmentations and pointer encodings."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import I386, S390X
from pyprof.unwind.formats.cfi_cie_and_fde import (
    Bases,
    CfiEntries,
    read_encoded,
    read_sleb128,
    read_uleb128,
    to_signed64,
)
from tests.unwind.cfi_assembler import Frames, advance, def_cfa, def_cfa_offset, offset, sleb, uleb

KIND = pytest.mark.parametrize("eh", [True, False], ids=["eh_frame", "debug_frame"])
ORDER = pytest.mark.parametrize("byteorder", ["little", "big"])


@KIND
@ORDER
@pytest.mark.parametrize("word", [4, 8])
@pytest.mark.parametrize("wide", [False, True], ids=["dwarf32", "dwarf64"])
@pytest.mark.parametrize("version", [1, 3, 4])
def test_every_layout_gives_the_same_function(eh: bool, byteorder: str, word: int, wide: bool, version: int) -> None:
    frames = Frames(eh=eh, byteorder=byteorder, word=word, wide=wide)
    cie = frames.cie(version=version)
    frames.fde(cie, 0x1000, 0x20)
    at = frames.fde(cie, 0x1020, 0x40, advance(1), def_cfa_offset(16))
    entries = CfiEntries(frames.section())
    fde = entries.fde(at)
    assert (fde.start, fde.end, fde.cie.offset, fde.cie.version) == (0x1020, 0x1060, cie, version)
    assert fde.instructions.startswith(advance(1) + def_cfa_offset(16))
    assert frames.data[fde.instructions_offset :].startswith(fde.instructions)
    assert entries.is_cie(cie)
    assert not entries.is_cie(at)


@pytest.mark.parametrize(
    "encoding",
    [0x00, 0x01, 0x02, 0x03, 0x04, 0x08, 0x09, 0x0A, 0x0B, 0x0C]
    + [a | f for a in (0x10, 0x20, 0x30) for f in (0x00, 0x03, 0x04, 0x08, 0x09, 0x0A, 0x0B, 0x0C)]
    + [0x50],
)  # fmt: skip
@ORDER
def test_every_pointer_encoding_gives_the_same_function(encoding: int, byteorder: str) -> None:
    frames = Frames(svma=0x1800, byteorder=byteorder, bases=Bases(text=0x1000, data=0x3000))
    cie = frames.cie(encoding=encoding)
    frames.fde(cie, 0x4000, 0x20)
    at = frames.fde(cie, 0x4020, 0x40)
    fde = CfiEntries(frames.section()).fde(at)
    assert (fde.start, fde.end) == (0x4020, 0x4060)
    index = frames.table().index
    assert index.start.tolist() == [0x4000, 0x4020]
    assert index.end.tolist() == [0x4020, 0x4060]
    assert index.offset_at(0x4030) == at


def test_address_size_of_version_4_overrides_the_file() -> None:
    frames = Frames(eh=False, word=8)
    narrow, usual = frames.cie(version=4, address_size=4), frames.cie(version=4)
    a, b = frames.fde(narrow, 0x1000, 0x20), frames.fde(usual, 0x2000, 0x20)
    entries = CfiEntries(frames.section())
    assert [(f.start, f.end) for f in (entries.fde(a), entries.fde(b))] == [(0x1000, 0x1020), (0x2000, 0x2020)]
    assert frames.table().index.start.tolist() == [0x1000, 0x2000]


def test_segment_selector_of_version_4_is_passed_over() -> None:
    frames = Frames(eh=False)
    at = frames.fde(frames.cie(version=4, segment_size=2), 0x1000, 0x20)
    assert CfiEntries(frames.section()).fde(at).start == 0x1000
    assert frames.table().index.start.tolist() == [0x1000]


def test_32_bit_addresses_wrap() -> None:
    frames = Frames(svma=0x9000, word=4)
    frames.fde(frames.cie(), 0xFFFF_F000, 0x20)
    assert frames.table(I386).index.start.tolist() == [0xFFFF_F000]
    assert CfiEntries(frames.section()).fde(frames.fdes[0][1]).start == 0xFFFF_F000


def test_addresses_of_the_kernel_half_are_read() -> None:
    frames = Frames(svma=0xFFFF_FFFF_8200_0000)
    at = frames.fde(frames.cie(), 0xFFFF_FFFF_8100_0000, 0x20)
    assert frames.table().index.offset_at(0xFFFF_FFFF_8100_001F) == at
    assert CfiEntries(frames.section()).fde(at).start == 0xFFFF_FFFF_8100_0000


@pytest.mark.parametrize(
    ("augmentation", "data", "encoding"),
    [
        ("zR", b"\x1b", 0x1B),
        ("zRS", b"\x1b", 0x1B),
        ("zSR", b"\x1b", 0x1B),
        ("zPLR", b"\x9b\x01\x02\x03\x04\x1b\x1b", 0x1B),
        ("zPLR", b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x1b\x1b", 0x1B),
        ("zPR", b"\x01\x80\x80\x01\x1b", 0x1B),
        ("zPR", b"\xff\x1b", 0x1B),
        ("zLR", b"\xff\x1b", 0x1B),
        ("zRB", b"\x1b", 0x1B),
        ("zRGS", b"\x1b", 0x1B),
        ("zR", b"\x1b\xaa\xbb", 0x1B),
        ("z", b"", 0x00),
        ("zRX", b"\x1b\x01\x02", 0x1B),
        ("zXL", b"\x01\x02", 0x00),
        ("", b"", 0x00),
        ("S", b"", 0x00),
        ("SB", b"", 0x00),
        ("eh", b"", 0x00),
    ],
)
def test_augmentations_are_read_or_passed_over(augmentation: str, data: bytes, encoding: int) -> None:
    frames = Frames()
    cie = frames.cie(augmentation=augmentation, augmentation_data=data, encoding=encoding)
    at = frames.fde(cie, 0x1000, 0x20, advance(1), def_cfa_offset(16), augmentation_data=b"\x0d\x0e")
    fde = CfiEntries(frames.section()).fde(at)
    assert (fde.start, fde.end) == (0x1000, 0x1020)
    assert fde.instructions[:3] == advance(1) + def_cfa_offset(16)
    assert fde.cie.signal == ("S" in augmentation)
    assert [row.split()[0] for row in frames.rows(at)] == ["+0x0", "+0x1"]


def test_signal_frame_says_so_in_its_rules() -> None:
    frames = Frames()
    assert frames.rows(frames.fde(frames.cie(augmentation="zRS"), 0x1000, 9)) == [
        "+0x0 cfa = sp + 8; ra = [cfa - 8]; signal"
    ]


def test_aligned_personality_is_passed_over() -> None:
    frames = Frames(svma=0x9000)
    head = 8 + 1 + len("zPR\0") + 3 + 1 + 1
    data = b"\x50" + bytes(-head % 8) + bytes(8) + b"\x1b"
    at = frames.fde(frames.cie(augmentation="zPR", augmentation_data=data), 0x1000, 0x20)
    assert CfiEntries(frames.section()).fde(at).start == 0x1000


@pytest.mark.parametrize(
    ("augmentation", "data", "problem"),
    [
        ("XR", b"", "unknown augmentation"),
        ("P", b"", "unknown augmentation"),
        ("armcc+", b"", "unknown augmentation"),
        ("zXR", b"\x01\x1b", "unknown augmentation"),
        ("zR", b"", "CIE"),
        ("zPR", b"\x00\x01", "CIE"),
        ("zPR", b"\x07\x01\x1b", "unknown pointer encoding"),
    ],
)
def test_augmentation_that_hides_the_addresses_is_a_format_error(augmentation: str, data: bytes, problem: str) -> None:
    frames = Frames()
    cie = frames.cie(augmentation=augmentation, augmentation_data=data, encoding=0)
    at = frames.fde(cie, 0x1000, 0x20)
    entries = CfiEntries(frames.section())
    with pytest.raises(FormatError, match=problem) as caught:
        entries.fde(at)
    assert caught.value.offset == cie
    with pytest.raises(FormatError, match=problem):
        entries.fde(at)


@pytest.mark.parametrize("encoding", [0x9B, 0x80, 0x4B, 0x05, 0x0F, 0x6B, 0xFF])
def test_address_that_no_file_can_tell_is_a_format_error(encoding: int) -> None:
    frames = Frames()
    cie = frames.cie(augmentation_data=bytes([encoding]), encoding=0)
    at = frames.fde(cie, 0x1000, 0x20)
    with pytest.raises(FormatError, match="encoding"):
        CfiEntries(frames.section()).fde(at)


@pytest.mark.parametrize("version", [0, 2, 5, 255])
def test_unknown_version_is_a_format_error(version: int) -> None:
    frames = Frames()
    at = frames.fde(frames.cie(version=version), 0x1000, 0x20)
    with pytest.raises(FormatError, match=f"unknown version {version}"):
        CfiEntries(frames.section()).fde(at)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda d, cie, fde: struct.pack_into("<I", d, fde, 0x1000), "runs past the section"),
        (lambda d, cie, fde: struct.pack_into("<I", d, fde, 3), "too short"),
        (lambda d, cie, fde: struct.pack_into("<IQ", d, fde, 0xFFFF_FFFF, 1 << 63), "runs past the section"),
        (lambda d, cie, fde: struct.pack_into("<I", d, fde, 8), "run past the entry"),
        (lambda d, cie, fde: struct.pack_into("<I", d, fde + 4, 0x7FFF_FFFF), "CIE: outside the section"),
        (lambda d, cie, fde: struct.pack_into("<I", d, fde + 4, 0), "a CIE where an FDE must stand"),
        (lambda d, cie, fde: struct.pack_into("<I", d, fde + 4, 4), "an FDE where a CIE must stand"),
        (lambda d, cie, fde: struct.pack_into("<I", d, cie, 5), "CIE"),
        (lambda d, cie, fde: d.__setitem__(slice(cie + 9, fde), b"x" * (fde - cie - 9)), "augmentation without end"),
    ],
)  # fmt: skip
def test_broken_entry_is_a_format_error(damage: Callable[[bytearray, int, int], None], problem: str) -> None:
    frames = Frames()
    cie = frames.cie(def_cfa(7, 8) + offset(16, 1) + bytes(40))
    at = frames.fde(cie, 0x1000, 0x20)
    damage(frames.data, cie, at)
    frames.data += bytes(64)
    with pytest.raises(FormatError, match=problem):
        CfiEntries(frames.section()).fde(at)


@pytest.mark.parametrize("at", [-1, -(1 << 40), 1 << 40])
def test_offset_outside_the_section_is_a_format_error(at: int) -> None:
    frames = Frames()
    frames.cie()
    with pytest.raises(FormatError):
        CfiEntries(frames.section()).fde(at)


def test_range_that_wraps_around_is_a_format_error() -> None:
    frames = Frames(eh=False)
    at = frames.fde(frames.cie(), (1 << 64) - 16, 32)
    with pytest.raises(FormatError, match="wraps around"):
        CfiEntries(frames.section()).fde(at)
    assert len(frames.table().index.start) == 0


def test_return_column_of_two_bytes() -> None:
    frames = Frames(eh=False, byteorder="big")
    cie = frames.cie(def_cfa(15, 160), version=3, ra=300)
    at = frames.fde(cie, 0x1000, 0x20, b"\x05" + uleb(300) + uleb(6))
    assert CfiEntries(frames.section()).cie(cie).ra == 300
    assert frames.rows(at, S390X) == ["+0x0 cfa = sp + 160; ra = [cfa - 48]"]


@pytest.mark.parametrize("value", [0, 1, 63, 64, 127, 128, 1 << 31, (1 << 63) - 1, (1 << 64) - 1])
def test_leb128_there_and_back(value: int) -> None:
    assert read_uleb128(uleb(value), 0) == (value, len(uleb(value)))
    for signed in (value, -value):
        assert read_sleb128(sleb(signed), 0)[0] == to_signed64(signed)


def test_leb128_may_be_padded_and_must_end() -> None:
    assert read_uleb128(b"\x85\x80\x80\x00", 0) == (5, 4)
    assert read_sleb128(b"\xfb\xff\xff\x7f", 0) == (-5, 4)
    for read in (read_uleb128, read_sleb128):
        with pytest.raises(IndexError):
            read(b"\x80\x80", 0)
        with pytest.raises(ValueError, match="more than 64 bits"):
            read(b"\x80" * 100, 0)


def test_pointer_past_the_end_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        read_encoded(memoryview(b"\0\0\0"), 0, 3, address_size=8, byteorder="little", svma=0, bases=Bases())
