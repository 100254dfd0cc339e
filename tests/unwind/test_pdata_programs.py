"""Function tables of C++ programs that MinGW has built: at every instruction equal to the .debug_frame of GCC."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import pytest

from pyprof.model.arch import X86_64
from pyprof.model.arch.x86_instructions import instruction_length
from pyprof.objfile.pe import PeFile
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.elf_symtab import read_symbol_sources
from pyprof.unwind.module_unwind_sources import open_sources
from pyprof.unwind.rules import FunctionRows, RegKind, Rule
from tests.support import PROGRAMS, build

pytestmark = pytest.mark.matrix

SAVED = frozenset(X86_64.callee_saved) | {X86_64.registers.index("rsi"), X86_64.registers.index("rdi")}
RETURNS = (b"\xc3", b"\xf3\xc3", b"\xc2")
LEAVING = (*RETURNS, b"\xe9", b"\xeb", b"\xff", b"\x48\xff", b"\x0f\x0b")
PADDING = (b"\x90", b"\x66", b"\x0f\x1f", b"\xcc")


def windows_program(folder: Path, level: str) -> PeFile:
    path = folder / f"dumps{level}.exe"
    build(PROGRAMS / "windows_dumps.cpp", path, level, "-g", "-static", "-ldbghelp", compiler="x86_64-w64-mingw32-g++")
    return PeFile.open(str(path))


def rule_at(rows: FunctionRows, svma: int) -> Rule:
    return rows.rules[bisect_right(rows.starts, svma) - 1]


def described(rule: Rule) -> tuple[dict[int, int], tuple[int, int]]:
    saved = {register: how.n for register, how in rule.regs if how.kind is RegKind.AT_CFA and register in SAVED}
    return saved, (rule.cfa_reg, rule.cfa_off)


@pytest.mark.parametrize("level", ["-O2", "-O0"])
def test_rules_are_those_of_dwarf_at_every_instruction(level: str, tmp_path: Path) -> None:
    file = windows_program(tmp_path, level)
    pdata, dwarf = open_sources(file, X86_64, ("pdata", "debug_frame"), Diagnostics())
    differs, compared = [], 0
    for function in dwarf.functions():
        code = bytes(file.at_svma(function.start, function.end - function.start))
        at, last = 0, b""
        rows = None
        while at < len(code) and (size := instruction_length(code, at, wide=True)):
            svma, text = function.start + at, code[at : at + size]
            if rows is None or not rows.start <= svma < rows.end:
                rows = pdata.function_at(svma)
            at, before, last = at + size, last, text
            if before.startswith(LEAVING) and text.startswith(PADDING):
                last = before  # nothing runs there
                continue
            if rows is None:
                continue
            (ours, cfa), (theirs, other) = described(rule_at(rows, svma)), described(rule_at(function, svma))
            if text.startswith(RETURNS):
                other = (X86_64.sp, 8)  # GCC forgets that `lea n(%rbp),%rsp` sets the CFA
            if text.startswith(RETURNS) or other[1] >= 8:
                compared += 1
                if (cfa[0] == other[0] and cfa != other) or ours != theirs:
                    differs.append((hex(svma), ours, cfa, theirs, other))
    assert not differs
    assert compared > 3000


def test_functions_have_the_names_of_the_symbol_table(tmp_path: Path) -> None:
    sources = read_symbol_sources(windows_program(tmp_path, "-O2"), lambda: None)
    names = {bytes(rows.strings[at:]).split(b"\0")[0] for rows in sources.rows for at in rows.name.tolist()}
    assert {b"_Z4leafi", b"_Z7dynamici", b"main"} <= names
    assert sources.complete
