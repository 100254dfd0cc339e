"""Tests of the records of symbol files: each kind, both forms of INLINE, and tolerated deviations."""

from __future__ import annotations

import pytest

from pyprof.errors import FormatError
from pyprof.objfile import breakpad_index
from pyprof.objfile.breakpad_records import FuncRecord, InlineRecord, LineRecord, ModuleRecord, WinRecord
from pyprof.problem_counters import Diagnostics, Problem
from tests.breakpad.support import HEAD, symbol_file

SMALL = """\
INFO CODE_ID 8C3FFB4F4D0AF64EB2A9E0C35E4F1A6B00112233
INFO URL http://example.org/a
FILE 0 /src/a file.c
FILE 1 /src/b.h
INLINE_ORIGIN 0 inner(int)
INLINE_ORIGIN 1 outer call()
FUNC 1000 54 0 main
INLINE 0 12 0 1 1010 20 1038 4
INLINE 1 33 1 0 1014 8
1000 10 10 0
1010 4 40 1
1014 8 7 1
101c 14 41 1
1030 24 13 0
FUNC m 1060 10 8 ns::f(int, char const*) const
1060 10 99 1
PUBLIC 2000 0 _start
PUBLIC m 2020 c name with spaces
STACK CFI INIT 1000 54 .cfa: $rsp 8 + .ra: .cfa -8 + ^
STACK CFI 1001 .cfa: $rsp 16 + $rbp: .cfa -16 + ^
STACK CFI 1004 .cfa: $rbp 16 +
STACK CFI INIT 1060 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^
STACK WIN 4 3000 40 1 2 8 4 c 0 1 $T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + =
STACK WIN 0 3000 80 1 2 8 4 c 0 0 1
STACK WIN 1 3000 80 1 2 8 4 c 0 0 1
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_record_is_read(end: str) -> None:
    file = symbol_file((HEAD + SMALL).replace("\n", end).encode())
    assert file.module == ModuleRecord("Linux", "x86_64", "4FFB3F8C0A4D4EF6B2A9E0C35E4F1A6B0", "a program")
    assert file.code_id == "8c3ffb4f4d0af64eb2a9e0c35e4f1a6b00112233"
    assert file.function_at(0x1053) == FuncRecord(0x1000, 0x54, 0, "main", False)
    assert file.function_at(0x1054) is None
    assert file.function_at(0x106F) == FuncRecord(0x1060, 0x10, 8, "ns::f(int, char const*) const", True)
    assert file.public_at(0x2001) == FuncRecord(0x2000, 0, 0, "_start", False)
    assert file.public_at(0x9000) == FuncRecord(0x2020, 0, 12, "name with spaces", True)
    assert file.public_at(0x1FFF) is None
    lines, inlines = file.body_at(0x1000)
    assert lines[0] == LineRecord(0x1000, 0x10, 10, 0)
    assert len(lines) == 5
    assert inlines == [
        InlineRecord(0, 12, 0, 1, ((0x1010, 0x1030), (0x1038, 0x103C))),
        InlineRecord(1, 33, 1, 0, ((0x1014, 0x101C),)),
    ]
    assert file.file_name(0) == "/src/a file.c"
    assert file.file_name(7) is None
    assert file.origin(1) == ("outer call()", None)
    assert file.origin(9) == ("", None)
    assert file.cfi_at(0x1010) == (
        0x1000,
        0x1054,
        [
            (0x1000, {".cfa": "$rsp 8 +", ".ra": ".cfa -8 + ^"}),
            (0x1001, {".cfa": "$rsp 16 +", "$rbp": ".cfa -16 + ^"}),
            (0x1004, {".cfa": "$rbp 16 +"}),
        ],
    )
    assert file.cfi_at(0x1054) is None
    assert [start for start, _, _ in file.cfi_ranges()] == [0x1000, 0x1060]


def test_win_record_of_type_4_comes_before_type_0() -> None:
    file = symbol_file(SMALL)
    program = "$T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + ="
    assert file.win_at(0x303F) == WinRecord(4, 0x3000, 0x40, 1, 2, 8, 4, 12, program, False)
    assert file.win_at(0x3040) == WinRecord(0, 0x3000, 0x80, 1, 2, 8, 4, 12, "", True)


def test_inline_of_the_old_form_has_no_file() -> None:
    file = symbol_file("INLINE_ORIGIN 3 1 f(int)\nINLINE_ORIGIN 4 -1 g\nFUNC 10 10 0 m\nINLINE 0 5 3 12 4\n")
    assert file.body_at(0x10)[1] == [InlineRecord(0, 5, None, 3, ((0x12, 0x16),))]
    assert file.origin(3) == ("f(int)", 1)
    assert file.origin(4) == ("g", -1)


def test_last_line_needs_no_newline() -> None:
    file = symbol_file("FUNC 10 10 0 a\nPUBLIC 40 0 b")
    assert file.public_at(0x40) is not None
    assert symbol_file("FUNC 10 10 0 a\n10 10 5 0").body_at(0x10)[0] == [LineRecord(0x10, 0x10, 5, 0)]


def test_of_two_functions_at_one_address_the_first_counts_and_an_inner_one_wins() -> None:
    file = symbol_file("FUNC 10 40 0 a\nFUNC 10 20 0 b\nFUNC 20 8 0 inner\n")
    names = [body.name if (body := file.function_at(at)) else None for at in (0x10, 0x20, 0x28, 0x50)]
    assert names == ["a", "inner", "a", None]


@pytest.mark.parametrize("address", [-1, 1 << 64])
def test_address_outside_of_64_bits_has_no_symbol(address: int) -> None:
    file = symbol_file("FUNC 0 10 0 a\nPUBLIC 20 0 b\n")
    assert file.function_at(address) is None
    assert file.public_at(address) is None


def test_files_and_functions_may_stand_in_any_order_between_lines() -> None:
    file = symbol_file("PUBLIC 90 0 p\nFUNC 50 10 0 b\n50 8 1 2\nFILE 2 late\n58 8 2 2\nFUNC 10 10 0 a\n10 10 3 2\n")
    assert [line.line for line in file.body_at(0x50)[0]] == [1, 2]
    assert file.file_name(2) == "late"
    assert [line.line for line in file.body_at(0x10)[0]] == [3]


def test_words_behind_a_line_record_are_passed_over() -> None:
    """Ignore words after a line record, as Breakpad does. Some writers put a comment there."""
    file = symbol_file("FUNC 10 10 0 f\n10 8 1 2 # inlined\n18 8 2 2 3 4 5\n")
    assert file.body_at(0x10)[0] == [LineRecord(0x10, 8, 1, 2), LineRecord(0x18, 8, 2, 2)]


ODD = {
    "unknown record": "BOGUS 1 2 3\n",
    "malformed FUNC": "FUNC 10 xx 0 f\n",
    "FUNC without a size": "FUNC 10 0 0 f\n",
    "malformed FILE": "FILE x y\n",
    "malformed INLINE_ORIGIN": "INLINE_ORIGIN -1 y\n",
    "malformed STACK CFI INIT": "STACK CFI INIT 10\n",
    "malformed STACK WIN": "STACK WIN 4 zz\n",
    "STACK WIN of another type than 0 or 4": "STACK WIN 2 10 10 0 0 0 0 0 0 0 0\n",
    "STACK CFI that follows no INIT": "STACK CFI 10 .cfa: $rsp 8 +\n",
    "line record before any FUNC": "10 10 1 1\n",
    "malformed line record": "FUNC 10 10 0 f\n10 10 1\n",
    "malformed INLINE": "FUNC 10 10 0 f\nINLINE 0 0 0 1\n",
}


UNPLACED = ("FUNC without a size", "STACK WIN of another type than 0 or 4")


@pytest.mark.parametrize("what", ODD)
def test_oddity_is_counted_and_named_with_its_line(what: str) -> None:
    diagnostics = Diagnostics()
    file = symbol_file("\n" + ODD[what] + "PUBLIC 300 0 after\n", diagnostics)
    assert file.public_at(0x300) is not None
    file.body_at(0x10)
    assert diagnostics.counts == {f"symbol_file_line_invalid:{what}": 1}
    line = 2 + ODD[what].count("\n")
    text = f"{what}: 1" if what in UNPLACED else f"line {line}: {what}"
    assert diagnostics.problems["made.sym"] == {
        Problem(text, reason="symbol_file_lines" if what in UNPLACED else "symbol_file_line")
    }


def test_line_numbers_count_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakpad_index, "CHUNK", 64)
    diagnostics = Diagnostics()
    body = "".join(f"FUNC {at:x} 10 0 f{at}\n{at:x} 10 {at} 0\n" for at in range(0x100, 0x1000, 0x10))
    file = symbol_file(body + "NONSENSE\nFUNC 2000 10 0 last\n2000 10\n", diagnostics)
    assert file.index.lines == 1 + 2 * 240 + 3
    assert all(file.function_at(at) for at in range(0x100, 0x1000))
    file.body_at(0x2000)
    assert diagnostics.problems["made.sym"] == {
        Problem("line 482: unknown record", reason="symbol_file_line"),
        Problem("line 484: malformed line record", reason="symbol_file_line"),
    }


def test_line_that_is_longer_than_a_chunk_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakpad_index, "CHUNK", 256)
    diagnostics = Diagnostics()
    file = symbol_file("FUNC 10 10 0 a\nFUNC 20 10 0 " + "x" * 2000 + "\nFUNC 30 10 0 c\n", diagnostics)
    assert [bool(file.function_at(at)) for at in (0x10, 0x20, 0x30)] == [True, False, True]
    assert diagnostics.counts == {"symbol_file_line_invalid:line of over 8 MiB": 1}


def test_only_some_problems_are_named_all_are_counted() -> None:
    diagnostics = Diagnostics()
    file = symbol_file("FUNC 10 10 0 f\n" + "10 zz 1 1\n" * 50, diagnostics)
    assert file.body_at(0x10) == ([], [])
    assert diagnostics.counts["symbol_file_line_invalid:malformed line record"] == 50
    assert len(diagnostics.problems["made.sym"]) == 8


@pytest.mark.parametrize("data", [b"", b"\n", b"\x7fELF", b"MODULE Linux x86_64\n", b"MODULE Linux x86_64 xyz a\n"])
def test_file_without_module_record_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError, match="no MODULE record"):
        symbol_file(data)
