"""Tests of the EXIDX index: written tables are read back, and broken entries lose only what they cover."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.arch import ARM, ARMEB, X86_64
from pyprof.model.unwind_result import Trust
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.exidx_section import Entry, Exidx, open_exidx, read_entries
from pyprof.unwind.rule_text import describe_rule
from tests.unwind.exidx import writer
from tests.unwind.exidx.writer import CANT, COMPACT, GENERIC, INLINE, TABLES, TEXT, Written, elf_file, wrap

pytestmark = [pytest.mark.matrix, pytest.mark.system]


def source(image: bytes) -> Exidx:
    elf = ElfFile.from_bytes(image, "written")
    found = open_exidx(elf, ARM if elf.byteorder == "little" else ARMEB, Diagnostics())
    assert found is not None
    return found


def codes(kind: str, personality: int) -> st.SearchStrategy[bytes]:
    head = 2 if kind == COMPACT and personality else 3
    more = st.just(0) if kind == INLINE or (kind == COMPACT and not personality) else st.integers(0, 255)
    return more.flatmap(lambda count: st.binary(min_size=head + 4 * count, max_size=head + 4 * count))


@st.composite
def functions(draw: st.DrawFn) -> Written:
    size, thumb = 4 * draw(st.integers(1, 1000)), draw(st.booleans())
    kind = draw(st.sampled_from([CANT, INLINE, COMPACT, GENERIC]))
    personality = {CANT: -1, INLINE: 0}.get(kind, draw(st.integers(0, 2)))
    if kind == GENERIC:
        personality = TEXT + 2 * draw(st.integers(0, 1000))
    code = b"" if kind == CANT else draw(codes(kind, personality))
    return Written(size, kind, code, personality, thumb)


@settings(deadline=None)
@given(st.lists(functions(), min_size=1, max_size=30), st.sampled_from("<>"))
def test_written_tables_come_back_unchanged(wanted: list[Written], order: str) -> None:
    start = TEXT
    found = list(read_entries(source(elf_file(wanted, order)).index))
    assert len(found) == len(wanted)
    for function, entry in zip(wanted, found, strict=True):
        assert isinstance(entry, Entry)
        assert (entry.start, entry.end) == (start, start + function.size)
        assert (entry.model.value, entry.code, entry.personality) == (
            function.kind,
            function.code,
            function.personality,
        )
        start += function.size


def test_entry_ends_where_the_next_begins_and_the_last_with_its_segment() -> None:
    exidx = source(
        elf_file([Written(8, INLINE, b"\xa8\xb0\xb0"), Written(8, INLINE, b"\xb0\xb0\xb0")], text_size=0x100)
    )
    first, last = exidx.function_at(TEXT + 7), exidx.function_at(TEXT + 8)
    assert first is not None
    assert last is not None
    assert (first.start, first.end, last.start, last.end) == (TEXT, TEXT + 8, TEXT + 8, TEXT + 0x100)
    assert exidx.function_at(TEXT - 1) is None
    assert exidx.function_at(TEXT + 0x100) is None
    assert (exidx.name, exidx.trust) == ("exidx", Trust.EXIDX)


def test_thumb_bit_of_a_key_is_no_address() -> None:
    rows = source(elf_file([Written(8, INLINE, b"\xa8\xb0\xb0", thumb=True)])).function_at(TEXT)
    assert rows is not None
    assert rows.start == TEXT


def test_function_that_cannot_be_unwound_is_not_covered() -> None:
    exidx = source(elf_file([Written(8, CANT), Written(8, INLINE, b"\x80\x00\xb0"), Written(8, INLINE, b"\xb0" * 3)]))
    assert exidx.function_at(TEXT) is None
    assert exidx.function_at(TEXT + 8) is None
    assert [f.start for f in exidx.functions()] == [TEXT + 16]


def test_broken_entry_costs_its_function_only() -> None:
    image = elf_file(
        [Written(8, INLINE, b"\xa8\xb0\xb0"), Written(8, INLINE, b"\xff\xb0\xb0"), Written(8, INLINE, b"\xb0" * 3)]
    )
    exidx = source(image)
    with pytest.raises(FormatError, match="reserved instruction ff"):
        exidx.function_at(TEXT + 8)
    assert [f.start for f in exidx.functions()] == [TEXT, TEXT + 16]


@pytest.mark.parametrize("word", [0x8100_B0B0, 0x8300_B0B0, 0x8F00_0000, 0xC000_0000, 0xFFFF_FFFF])
def test_inline_entry_of_another_personality_is_refused(word: int) -> None:
    index = struct.pack("<II", writer.prel31(TABLES, TEXT), word)
    with pytest.raises(FormatError, match="inline entry of personality"):
        source(wrap(index, TABLES, 8, 16)).function_at(TEXT)


@pytest.mark.parametrize("number", [3, 15])
def test_reserved_personality_is_refused(number: int) -> None:
    tables = struct.pack(
        "<III", 0x8000_0000 | number << 24, writer.prel31(TABLES + 4, TEXT), writer.prel31(TABLES + 8, TABLES)
    )
    with pytest.raises(FormatError, match=f"personality routine {number} is reserved"):
        source(wrap(tables, TABLES + 4, 8, 16)).function_at(TEXT)


def test_table_outside_of_the_file_is_refused() -> None:
    for target in (0, 0x4000_0000, TABLES + 6):
        index = struct.pack("<II", writer.prel31(TABLES, TEXT), writer.prel31(TABLES + 4, target))
        with pytest.raises(FormatError, match="outside of the file"):
            source(wrap(index, TABLES, 8, 16)).function_at(TEXT)


def test_more_words_than_the_file_has_are_refused() -> None:
    tables = struct.pack("<III", 0x81FF_B0B0, writer.prel31(TABLES + 4, TEXT), writer.prel31(TABLES + 8, TABLES))
    with pytest.raises(FormatError, match="255 words"):
        source(wrap(tables, TABLES + 4, 8, 16)).function_at(TEXT)


def test_index_that_is_not_sorted_is_sorted_and_counted() -> None:
    places = [(TEXT + 8, 0x80A8_B0B0), (TEXT, 0x80A9_B0B0)]
    index = b"".join(
        struct.pack("<II", writer.prel31(TABLES + 8 * n, start), word) for n, (start, word) in enumerate(places)
    )
    diagnostics = Diagnostics()
    exidx = open_exidx(ElfFile.from_bytes(wrap(index, TABLES, 16, 16), "x"), ARM, diagnostics)
    assert exidx is not None
    assert diagnostics.counts == {"exidx_index_not_sorted": 1}
    texts = [describe_rule(f.rules[0], ARM) for f in exidx.functions()]
    assert texts == [
        "cfa = sp + 12; r4 = [cfa - 12]; r5 = [cfa - 8]; ra = [cfa - 4]",
        "cfa = sp + 8; r4 = [cfa - 8]; ra = [cfa - 4]",
    ]


def test_index_that_ends_within_an_entry_is_counted() -> None:
    index = struct.pack("<III", writer.prel31(TABLES, TEXT), 0x80A8_B0B0, 0)
    diagnostics = Diagnostics()
    exidx = open_exidx(ElfFile.from_bytes(wrap(index, TABLES, 12, 16), "x"), ARM, diagnostics)
    assert exidx is not None
    assert len(exidx.index) == 1
    assert diagnostics.counts == {"exidx_index_truncated": 1}


def test_key_with_bit_31_breaks_the_index() -> None:
    index = struct.pack("<II", 0x8000_0000 | writer.prel31(TABLES, TEXT), 1)
    with pytest.raises(FormatError, match="bit 31"):
        source(wrap(index, TABLES, 8, 16))


def test_index_past_the_end_of_the_file_is_refused() -> None:
    with pytest.raises(FormatError, match="past the end"):
        source(wrap(b"\0" * 8, TABLES, 64, 16))


def test_file_without_an_index_or_of_another_architecture_has_no_source() -> None:
    image = elf_file([Written(8, CANT)])
    assert open_exidx(ElfFile.from_bytes(image, "x"), X86_64, Diagnostics()) is None
    none = wrap(b"", TABLES, 0, 16)
    assert open_exidx(ElfFile.from_bytes(none, "x"), ARM, Diagnostics()) is None


@pytest.mark.parametrize("code", ["4ff0000b4ff0000e", "00b0a0e300e0a0e3"])
def test_entry_point_that_cannot_be_unwound_is_outermost(code: str) -> None:
    image = bytearray(elf_file([Written(16, CANT), Written(80, CANT)], text_size=96))
    image[24:28] = struct.pack("<I", (TEXT + 16) | (code[0] == "4"))
    struct.pack_into("<I", image, 52 + 16, 96)  # p_filesz of the text segment
    image[writer.TEXT_OFFSET + 16 : writer.TEXT_OFFSET + 24] = bytes.fromhex(code)
    exidx = source(bytes(image))
    rows = exidx.function_at(TEXT + 16 + 40)
    assert rows is not None
    assert describe_rule(rows.rules[0], ARM) == "cfa = sp; ra = undefined"
    assert exidx.function_at(TEXT + 15) is None
    assert exidx.function_at(TEXT + 16 + 48) is None


def test_entry_point_of_a_library_is_a_function_like_others() -> None:
    image = bytearray(elf_file([Written(96, CANT)]))
    image[24:28] = struct.pack("<I", TEXT)
    assert source(bytes(image)).function_at(TEXT) is None
