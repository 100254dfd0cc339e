"""Tests of Go's runtime, which switches stacks without CFI: the walk ends there and invents no caller.

The code is that of Go 1.19's runtime on x86-64, whose table has "cfa = sp + 8" for all of each function.
"""

from __future__ import annotations

import pytest

from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import X86_64
from pyprof.model.walk import StackEnd
from pyprof.objfile.elf.file import ElfFile
from pyprof.unwind.formats.cfi.debug_frame import DebugFrame, open_debug_frame
from pyprof.unwind.scalar import NoCaller
from tests.unwind.cfi_assembler import Frames, algebra, def_cfa_offset
from tests.unwind.cfi_elf import Content, elf_bytes
from tests.unwind.test_scalar import SP, step

SVMA = 0x1000

SYSTEMSTACK = bytes.fromhex(
    "488b7c2408 64488b0425f8ffffff 488b5830 483b4350 745b 488b13 4839d0 7453 483b83c0000000 7552 e8d2f1ffff "
    "6448891425f8ffffff 4989d6 488b5a38 4889dc 4889fa 488b3f ffd7 "  # switches stacks at 0x41, call returns to 0x49
    "64488b0425f8ffffff 488b5830 488b83c0000000 6448890425f8ffffff 488b6038 48c7403800000000 c3 4889fa 488b3f ffe7"
)
MCALL = bytes.fromhex("4889c2 488b1c24 49895e40 4c89f0 4989f6 498b6638 50 4c8b22 41ffd4 58 e917450000 c3")
NANOTIME = bytes.fromhex("4883ec18 4989e4 488b6238 4883ec10 4883e4f0 ffd0 488b0424 4c89e4 4883c418 c3")
COMPILED = bytes.fromhex("4883ec18 48896c2410 488d6c2410 488b4038 ffd1 488b6c2410 4883c418 c3")

TABLE = "cfa = sp + 8; ra = [cfa - 8]"
LOST = "cfa = expr(deref); ra = [cfa - 8]"
OUTERMOST = "cfa = sp + 8; ra = undefined"


def go_program(code: bytes, linked_by_go: bool = True) -> DebugFrame:
    frames = Frames(eh=False, svma=0)
    frames.fde(frames.cie(), SVMA, len(code), def_cfa_offset(8))
    sections = {".text": Content(code, SVMA, 2), ".debug_frame": Content(bytes(frames.data))}
    if linked_by_go:
        sections[".gopclntab"] = Content(b"\xf1\xff\xff\xff")
    source = open_debug_frame(ElfFile.from_bytes(elf_bytes(sections, None), "program"), X86_64, Diagnostics())
    assert source is not None
    return source


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        (SYSTEMSTACK, [(0x0, TABLE), (0x41, LOST), (0x6A, TABLE)]),
        (MCALL, [(0x0, TABLE), (0x15, OUTERMOST)]),
        (NANOTIME, [(0x0, TABLE), (0xB, LOST), (0x1C, TABLE)]),
        (COMPILED, [(0x0, TABLE)]),
    ],
    ids=["systemstack", "mcall", "nanotime1", "compiled"],
)
def test_rows_end_where_the_runtime_leaves_the_stack(code: bytes, rows: list[tuple[int, str]]) -> None:
    source = go_program(code)
    expected = [f"+{offset:#x} {rule}" for offset, rule in rows]
    for function in (source.function_at(SVMA + 3), *source.functions()):
        assert function is not None
        assert algebra(function) == expected


def test_programs_of_others_keep_their_table() -> None:
    function = go_program(SYSTEMSTACK, linked_by_go=False).function_at(SVMA)
    assert function is not None
    assert algebra(function) == [f"+0x0 {TABLE}"]


def test_words_that_are_left_on_the_other_stack_are_no_caller() -> None:
    function = go_program(SYSTEMSTACK).function_at(SVMA)
    assert function is not None
    at_home, away, back = function.rules
    left_over = {SP: SVMA + 0x777, SP + 8: SVMA + 0x778}
    outcome = step(away, left_over)
    assert isinstance(outcome, NoCaller)
    assert outcome.end is StackEnd.NO_RULE
    assert at_home == back
