"""Tests of names, lines and inlined calls of addresses in a symbol file."""

from __future__ import annotations

from pyprof.symbolize.breakpad_names import MAX_INLINED, SymbolFileNames
from pyprof.symbolize.dwarf_source_lines import SourcePlace
from tests.breakpad.support import symbol_file
from tests.breakpad.test_reader import SMALL


def names(text: str) -> SymbolFileNames:
    return SymbolFileNames(symbol_file(text))


def places(text: str, address: int) -> list[SourcePlace]:
    found = names(text).find(address)
    assert found is not None
    return found.places


def test_inlined_calls_stand_inside_of_the_function() -> None:
    assert places(SMALL, 0x1015) == [
        SourcePlace("inner(int)", "/src/b.h", 7),
        SourcePlace("outer call()", "/src/b.h", 33),
        SourcePlace("main", "/src/a file.c", 12),
    ]
    assert places(SMALL, 0x101C) == [
        SourcePlace("outer call()", "/src/b.h", 41),
        SourcePlace("main", "/src/a file.c", 12),
    ]
    assert places(SMALL, 0x1001) == [SourcePlace("main", "/src/a file.c", 10)]
    assert places(SMALL, 0x1050) == [SourcePlace("main", "/src/a file.c", 13)]


def test_function_and_symbol_have_names_and_starts() -> None:
    found = names(SMALL).find(0x1062)
    assert found is not None
    assert (found.name, found.start, found.sized) == ("ns::f(int, char const*) const", 0x1060, True)
    found = names(SMALL).find(0x2005)
    assert found is not None
    assert (found.name, found.start, found.sized, found.places) == ("_start", 0x2000, False, [])


def test_symbol_without_size_does_not_reach_far_nor_past_a_function() -> None:
    assert names(SMALL).find(0x2020 + (1 << 16)) is None
    assert names("PUBLIC 100 0 p\nFUNC 200 10 0 f\n").find(0x210) is None
    assert names("PUBLIC 100 0 p\nFUNC 200 10 0 f\n").find(0x1FF) is not None


def test_old_form_takes_the_file_of_the_function_around_the_call() -> None:
    text = """\
FILE 1 outer.h
FILE 2 inner.h
INLINE_ORIGIN 5 1 outer
INLINE_ORIGIN 6 2 inner
FUNC 10 10 0 f
INLINE 0 7 5 10 10
INLINE 1 8 6 10 8
10 10 99 2
"""
    assert places(text, 0x12) == [
        SourcePlace("inner", "inner.h", 99),
        SourcePlace("outer", "outer.h", 8),
        SourcePlace("f", None, 7),
    ]


def test_lines_of_no_size_hide_nothing() -> None:
    """Use empty line records, which Visual C++ writes before or after the valid line."""
    for lines in ("10 0 85 1\n10 8 87 1\n", "10 8 87 1\n10 0 85 1\n"):
        assert places(f"FILE 1 a\nFUNC 10 8 0 f\n{lines}", 0x10) == [SourcePlace("f", "a", 87)]


def test_gap_between_lines_has_a_name_only() -> None:
    assert places("FILE 1 a\nFUNC 10 20 0 f\n10 8 5 1\n20 8 6 1\n", 0x19) == []


def test_inlined_calls_are_bounded() -> None:
    deep = "".join(f"INLINE {depth} 1 0 0 10 10\n" for depth in range(5000))
    found = places(f"FILE 0 a\nINLINE_ORIGIN 0 i\nFUNC 10 10 0 f\n10 10 1 0\n{deep}", 0x10)
    assert len(found) == MAX_INLINED + 1


def test_depth_that_is_left_out_ends_the_chain() -> None:
    text = "INLINE_ORIGIN 0 i\nFUNC 10 10 0 f\nINLINE 1 3 0 0 10 10\n10 10 1 0\n"
    assert [place.name for place in places(text, 0x10)] == ["f"]
