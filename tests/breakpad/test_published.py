"""Expectations of Breakpad's own unit tests for postfix expressions and inlined calls (BSD licence).

Sources: src/processor/postfix_evaluator_unittest.cc and basic_source_line_resolver_unittest.cc with
testdata/symbols/linux_inline.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyprof.symbolize.breakpad import SymbolFileNames
from pyprof.unwind.formats.breakpad.postfix import PostfixFailed, evaluate_postfix, run_program
from tests.breakpad.support import symbol_file

BASICS = [
    ("$rAdd 2 2 + =", True),
    ("$rAdd $rAdd 2 + =", True),
    ("$rAdd 2 $rAdd + =", True),
    ("99", False),
    ("$rAdd2 2 2 + =", True),
    ("$rAdd2\t2\n2 + =", True),
    ("$rAdd2 2 2 + = ", True),
    (" $rAdd2 2 2 + =", True),
    ("$rAdd2  2 2 +   =", True),
    ("$T0 2 = +", False),
    ("2 + =", False),
    ("2 +", False),
    ("+", False),
    ("^", False),
    ("=", False),
    ("2 =", False),
    ("2 2 + =", False),
    ("2 2 =", False),
    ("k 2 =", False),
    ("2", False),
    ("2 2 +", False),
    ("$rAdd", False),
    ("0 $T1 0 0 + =", False),
    ("$T2 $T2 2 + =", False),
    ("$rMul 9 6 * =", True),
    ("$rSub 9 6 - =", True),
    ("$rDivQ 9 6 / =", True),
    ("$rDivM 9 6 % =", True),
    ("$rDeref 9 ^ =", True),
    ("$rAlign 36 8 @ =", True),
    ("$rAdd3 2 2 + =$rMul2 9 6 * =", True),
]
BASIC_VALUES = {
    **{"$rAdd": 8, "$rAdd2": 4, "$rSub": 3, "$rMul": 54, "$rDivQ": 1, "$rDivM": 3, "$rDeref": 10},
    **{"$rAlign": 32, "$rAdd3": 4, "$rMul2": 54},
}

CLASSIC = "$T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + = $L $T0 .cbSavedRegs - = $P $T0 8 + .cbParams + ="
PROGRAMS = [
    (CLASSIC, True),
    (f"{CLASSIC} $ebx $T0 28 - ^ =", True),
    (
        "$T0 $ebp = $T2 $esp = $T1 .raSearchStart = $eip $T1 ^ = $ebp $T0 = $esp $T1 4 + = "
        "$L $T0 .cbSavedRegs - = $P $T1 4 + .cbParams + = $ebx $T0 28 - ^ =",
        True,
    ),
]
GIVEN = {
    **{"$ebp": 0xBFFF0010, "$eip": 0x10000000, "$esp": 0xBFFF0000},
    **{".cbSavedRegs": 4, ".cbParams": 4, ".raSearchStart": 0xBFFF0020},
}
PROGRAM_VALUES = {
    **{"$T0": 0xBFFF0012, "$T1": 0xBFFF0020, "$T2": 0xBFFF0019, "$eip": 0xBFFF0021, "$ebp": 0xBFFF0012},
    **{"$esp": 0xBFFF0024, "$L": 0xBFFF000E, "$P": 0xBFFF0028, "$ebx": 0xBFFEFFF7},
}


def memory(avma: int, size: int) -> int:
    """Return the address plus one, as Breakpad's FakeMemoryRegion does."""
    assert size == 4
    return avma + 1


@pytest.mark.parametrize(
    ("table", "given", "values"), [(BASICS, {}, BASIC_VALUES), (PROGRAMS, GIVEN, PROGRAM_VALUES)], ids=["0", "1"]
)
def test_programs(table: Sequence[tuple[str, bool]], given: dict[str, int], values: dict[str, int]) -> None:
    names = dict(given)
    assigned: dict[str, int] = {}
    for program, evaluable in table:
        try:
            found = run_program(program, names, memory, 4)
        except PostfixFailed:
            assert not evaluable, program
            continue
        assert evaluable, program
        assigned |= found
        names |= found
    assert {name: assigned[name] for name in values} == values
    assert not {".cbSavedRegs", ".cbParams"} & assigned.keys()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("28907223", 28907223),
        ("89854293 40010015 +", 89854293 + 40010015),
        ("-870245 8769343 +", 7899098),
        ("$ebp $esp - $eip +", 0x10000010),
        ("18929794 34015074", None),
        ("$ebp $ebp 4 - =", None),
        ("$new $eip = $new", 0x10000000),
        ("$new $eip = $new 4 +", 0x10000004),
        (".cfa 42 = 10", None),
    ],
)
def test_values(expression: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(PostfixFailed):
            evaluate_postfix(expression, GIVEN, memory, 4)
    else:
        assert evaluate_postfix(expression, GIVEN, memory, 4) == value


NEW_INLINES = """\
MODULE Linux x86_64 BBA6FA10B8AAB33D00000000000000000 linux_inline
INFO CODE_ID 10FAA6BBAAB83DB3
FILE 0 linux_inline.cpp
FILE 1 a.cpp
FILE 2 b.cpp
FILE 3 c.cpp
INLINE_ORIGIN 0 bar()
INLINE_ORIGIN 1 foo()
INLINE_ORIGIN 2 func()
FUNC 15b30 6cf 0 main
INLINE 0 42 1 1 15b45 6b1
INLINE 1 39 2 0 15b72 684
INLINE 2 32 3 2 15b83 673
15b30 15 41 0
15b45 11 36 0
15b72 11 31 0
15b83 a 9 0
16162 54 18 0
161b6 2 27 0
161b8 3e 28 0
161f6 9 43 0
"""
OLD_INLINES = (
    (NEW_INLINES.replace("ORIGIN 0", "ORIGIN 0 0").replace("ORIGIN 1", "ORIGIN 1 0").replace("ORIGIN 2", "ORIGIN 2 0"))
    .replace("0 42 1 1", "0 42 1")
    .replace("1 39 2 0", "1 39 0")
    .replace("2 32 3 2", "2 32 2")
)


@pytest.mark.parametrize(
    ("text", "files"),
    [(NEW_INLINES, ["linux_inline.cpp", "c.cpp", "b.cpp", "a.cpp"]), (OLD_INLINES, ["linux_inline.cpp"] * 4)],
    ids=["new", "old"],
)
def test_inlined_calls(text: str, files: list[str | None]) -> None:
    file = symbol_file(text.encode())
    assert (file.module.id, file.code_id) == ("BBA6FA10B8AAB33D00000000000000000", "10faa6bbaab83db3")
    found = SymbolFileNames(file).find(0x161B6)
    assert found is not None
    assert (found.name, found.start) == ("main", 0x15B30)
    assert [place.name for place in found.places] == ["func()", "bar()", "foo()", "main"]
    assert [place.line for place in found.places] == [27, 32, 39, 42]
    assert [place.file for place in found.places] == files
