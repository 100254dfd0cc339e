"""Tests of the SFrame reader's treatment of unusual sections, one small section each."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from pyprof.errors import FormatError
from pyprof.model.arch import AARCH64, S390X, X86_64
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.sframe_source import SFrame, read_sframe
from pyprof.unwind.rules import UNDEFINED, RegKind, RegRule, Rule
from tests.unwind.sframe.writer import Function, Place, Row, Section, write

SP, FP = 7, 6
ENTRY = Row(0, Place(SP, 8, False))
PUSHED = Row(1, Place(SP, 16, False), fp=Place(None, -16))


def section(*functions: Function, version: int = 3, flags: int = 1) -> Section:
    return Section(X86_64, version, svma=0x4000, flags=flags, fixed_ra=-8, functions=functions)


def read(data: bytes | Section, diagnostics: Diagnostics | None = None) -> SFrame:
    return read_sframe(data if isinstance(data, bytes) else write(data), 0x4000, X86_64, diagnostics)


def function(start: int = 0x1000, size: int = 0x20, rows: tuple[Row, ...] = (ENTRY, PUSHED), **more: Any) -> Function:
    return replace(Function(start, size, rows), **more)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def cfa_offsets(source: SFrame, svma: int) -> list[int]:
    rows = source.function_at(svma)
    assert rows is not None
    return [rule.cfa_off for rule in rows.rules]


def test_function_without_rows_is_outermost_in_version_3_only() -> None:
    rows = read(section(function(rows=()))).function_at(0x1010)
    assert rows is not None
    assert rows.rules == (Rule(SP, 0, UNDEFINED),)
    for version in (1, 2):
        assert read(section(function(rows=()), version=version)).function_at(0x1010) is None


def test_signal_function_without_rows_says_nothing() -> None:
    source = read(section(function(rows=(), signal=True)))
    assert source.function_at(0x1010) is None
    assert list(source.functions()) == []
    assert source.entry(0).signal


@pytest.mark.parametrize("version", [1, 2, 3])
def test_row_without_words_is_outermost_in_every_version(version: int) -> None:
    rows = read(section(function(rows=(Row(0, None),)), version=version)).function_at(0x1000)
    assert rows is not None
    assert rows.rules[0].ra == UNDEFINED


@pytest.mark.parametrize("at", [0x20, 0x30])
def test_row_at_or_past_the_functions_end_is_dropped(at: int) -> None:
    source = read(section(function(rows=(ENTRY, replace(PUSHED, at=at)))))
    assert cfa_offsets(source, 0x101F) == [8]


def test_address_before_the_first_row_is_not_covered() -> None:
    source = read(section(function(rows=(PUSHED,))))
    assert source.function_at(0x1000) is None
    assert cfa_offsets(source, 0x1001) == [16]


def test_of_two_rows_at_one_offset_the_last_counts() -> None:
    source = read(section(function(rows=(ENTRY, replace(PUSHED, at=0)))))
    assert cfa_offsets(source, 0x1000) == [16]


def test_function_of_no_size_hides_no_other() -> None:
    source = read(section(function(), function(size=0)))
    assert cfa_offsets(source, 0x1000) == [8, 16]
    assert [rows.start for rows in source.functions()] == [0x1000]


def test_function_ends_where_the_next_one_starts() -> None:
    source = read(section(function(size=0x40), function(0x1010, size=8)))
    assert [(rows.start, rows.end) for rows in source.functions()] == [(0x1000, 0x1010), (0x1010, 0x1018)]
    assert source.function_at(0x1018) is None


def test_repeating_block_is_looked_up_modulo_its_size() -> None:
    source = read(section(function(size=0x40, rows=(replace(ENTRY, at=2), replace(PUSHED, at=11)), repeat=16)))
    assert source.function_at(0x1031) is None  # offset 1 of a block lies before its first row
    rows = source.function_at(0x1032)
    assert rows is not None
    assert (rows.repeat, rows.starts) == (16, (0x1002, 0x100B))


@pytest.mark.parametrize("at", [16, 17])
def test_row_past_the_repeating_block_is_dropped(at: int) -> None:
    source = read(section(function(size=0x40, rows=(replace(ENTRY, at=2), replace(PUSHED, at=at)), repeat=16)))
    assert cfa_offsets(source, 0x103F) == [8]


def test_version_1_repeats_by_the_size_of_a_plt_entry() -> None:
    source = read(section(function(size=0x40, rows=(ENTRY, replace(PUSHED, at=11)), repeat=16), version=1))
    rows = source.function_at(0x103F)
    assert rows is not None
    assert rows.repeat == 16


def test_words_beyond_the_third_are_ignored() -> None:
    data = write(section(function(rows=(replace(PUSHED, at=0, word=1),), start_size=1)))
    row = len(data) - 4
    longer = bytes([0, 15 << 1 | 1, 16, 0xF0, *range(13)])
    data = patched(data[:row] + longer, 16, struct.pack("<I", 5 + len(longer)))
    rows = read(data).function_at(0x1000)
    assert rows is not None
    assert (FP, RegRule(RegKind.AT_CFA, -16)) in rows.rules[0].regs


def test_registers_that_sframe_does_not_track_are_lost_to_the_caller() -> None:
    rows = read(section(function())).function_at(0x1000)
    assert rows is not None
    assert dict(rows.rules[0].regs) == dict.fromkeys(X86_64.callee_saved - {FP, SP}, UNDEFINED)


def test_register_that_samples_do_not_carry_becomes_an_expression() -> None:
    xmm4, r40 = 21, 40
    row = Row(0, Place(xmm4, -8), ra=Place(r40, 300, False), fp=Place(xmm4, 0))
    rows = read(section(function(rows=(row,), flex=True))).function_at(0x1000)
    assert rows is not None
    rule = rows.rules[0]
    assert (rule.cfa_reg, rule.cfa_expr) == (-1, bytes([0x70 + xmm4, 0x78, 0x06]))  # breg21 -8; deref
    assert rule.ra == RegRule(RegKind.EXPR, expr=bytes([0x92, r40, 0xAC, 0x02]))  # bregx 40, 300
    assert dict(rule.regs)[FP] == RegRule(RegKind.AT_EXPR, expr=bytes([0x70 + xmm4, 0]))


def test_s390x_register_is_encoded_in_an_odd_word_before_version_3_only() -> None:
    row = Row(0, Place(15, 160, False), ra=Place(None, 35), word=1)
    for version, ra in ((2, RegRule(RegKind.REG_PLUS, 0, 17)), (3, RegRule(RegKind.AT_CFA, 35))):
        data = write(Section(S390X, version, functions=(Function(0x100, 8, (row,)),)))
        rows = read_sframe(data, 0, S390X).function_at(0x100)
        assert rows is not None
        assert (rows.rules[0].cfa_off, rows.rules[0].ra) == (160, ra)


def test_start_is_counted_modulo_the_address_space() -> None:
    top = (1 << 64) - 0x1000
    data = write(Section(X86_64, 3, svma=top, fixed_ra=-8, functions=(Function(top - 0x100, 0x20, (ENTRY,)),)))
    assert read_sframe(data, top, X86_64).function_at(top - 0x90) is None
    assert cfa_offsets(read_sframe(data, top, X86_64), top - 0xE1) == [8]
    moved = read_sframe(data, 0x80, X86_64)  # moves the functions to the top of the address space
    assert cfa_offsets(moved, (1 << 64) - 0x80) == [8]
    assert moved.function_at(-0x80) is None
    assert moved.function_at((1 << 64) + 1) is None


@pytest.mark.parametrize(("version", "promised", "counted"), [(1, True, 0), (2, True, 0), (3, False, 1)])
def test_frame_pointer_promise_exists_before_version_3(version: int, promised: bool, counted: int) -> None:
    diagnostics = Diagnostics()
    source = read(section(function(), version=version, flags=3), diagnostics)
    assert source.frame_pointers is promised
    assert diagnostics.counts["sframe_flags_unknown"] == counted
    assert source.exact is (version == 3)


def test_index_that_lies_about_its_order_is_sorted_and_counted() -> None:
    diagnostics = Diagnostics()
    source = read(section(function(0x2000), function(0x1000), flags=5), diagnostics)
    assert [rows.start for rows in source.functions()] == [0x1000, 0x2000]
    assert diagnostics.counts == {"sframe_index_not_sorted": 1}


def test_broken_function_costs_only_itself() -> None:
    diagnostics = Diagnostics()
    source = read(section(function(), function(0x2000, rows=(PUSHED, ENTRY)), function(0x3000)), diagnostics)
    with pytest.raises(FormatError, match="rows do not ascend") as error:
        source.function_at(0x2001)
    assert error.value.section == ".sframe"
    assert error.value.offset > 28 + 3 * 16
    assert [rows.start for rows in source.functions()] == [0x1000, 0x3000]
    assert diagnostics.counts == {"sframe_function_broken": 1}
    assert len(diagnostics.problems[""]) == 1


def test_functions_that_share_their_rows_end_the_listing() -> None:
    """Let functions share their rows, with which a section of a megabyte could list billions of rows."""
    many = tuple(function(0x1000 * n, rows=(ENTRY,), start_size=1) for n in range(1, 50))
    data = write(section(*many, version=2))
    for n in range(49):
        data = patched(data, 28 + 20 * n + 8, struct.pack("<II", 0, 49))
    diagnostics = Diagnostics()
    source = read(data, diagnostics)
    assert len(list(source.functions())) < 49
    assert diagnostics.counts["sframe_row_count_wrong"] == 1


HEAD = write(section(function()))
FRES = 28 + 16


@pytest.mark.parametrize(
    ("data", "offset", "problem"),
    [
        (b"", 0, "shorter than its header"),
        (HEAD[:27], 27, "shorter than its header"),
        (patched(HEAD, 0, b"\x7fE"), 0, "magic"),
        (patched(HEAD, 0, b"\xde\xe2"), 4, "byte order"),
        (patched(HEAD, 2, b"\x04"), 2, "version 4"),
        (patched(HEAD, 2, b"\x00"), 2, "version 0"),
        (patched(HEAD, 4, b"\x09"), 4, "abi 9"),
        (patched(HEAD, 4, b"\x02"), 4, "not that of x86_64"),
        (patched(HEAD, 8, b"\xff\xff\xff\xff"), 8, "functions"),
        (patched(HEAD, 7, b"\xff"), 8, "functions"),
        (patched(HEAD, 16, b"\xff\xff\xff\xff"), 16, "rows"),
        (HEAD[:-1], 16, "rows"),
    ],
)
def test_broken_header_names_its_place(data: bytes, offset: int, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as error:
        read(data)
    assert (error.value.section, error.value.offset) == (".sframe", offset)


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (28 + 12, b"\xff\xff\x00\x00", "rows outside the section"),
        (28 + 12, (len(HEAD) - FRES - 4).to_bytes(4, "little"), "rows outside the section"),
        (16, (len(HEAD) - FRES - 1).to_bytes(4, "little"), "row passes the section's end"),
        (16, (len(HEAD) - FRES - 9).to_bytes(4, "little"), "row passes the section's end"),
        (FRES, b"\xff\xff", "row passes the section's end"),
        (FRES + 2, b"\x03", "row type 3"),
        (FRES + 3, b"\x02", "function type 2"),
        (FRES + 2, b"\x12", "repeating block of no size"),
        (FRES + 5 + 4, b"\x63", "data words of unknown size"),
        (FRES + 3, b"\x01", "cfa without base register|control word without"),
    ],
)
def test_broken_function_says_what_is_wrong(at: int, value: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read(patched(HEAD, at, value)).function_at(0x1000)


def test_return_address_that_nothing_tells_is_an_error_where_no_register_links() -> None:
    data = patched(HEAD, 6, b"\x00")
    with pytest.raises(FormatError, match="no link register"):
        read(data).function_at(0x1000)


def test_link_register_serves_where_the_return_address_is_not_saved() -> None:
    data = write(Section(AARCH64, 2, functions=(Function(0x100, 8, (Row(0, Place(31, 0, False), mangled=True),)),)))
    rows = read_sframe(data, 0, AARCH64).function_at(0x104)
    assert rows is not None
    assert (rows.rules[0].ra, rows.rules[0].pac) == (RegRule(RegKind.REG_PLUS, 0, AARCH64.lr), True)
