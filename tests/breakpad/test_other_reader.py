"""Tests against Sentry's `symbolic`: it reads the symbol files that pyprof writes, and pyprof reads its STACK CFI."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.model.arch import X86_64
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.breakpad_stack_cfi import StackCfi
from pyprof.unwind.module_unwind_sources import READERS
from pyprof.unwind.rule_text import format_rule_fields
from pyprof.unwind.rules import FunctionRows, Rule
from tests.breakpad.other_reader import compare
from tests.support import PROGRAMS, build, missing

pytestmark = pytest.mark.system

INLINES = PROGRAMS.parent / "symbolize" / "programs" / "inlines.cc"


@pytest.fixture(scope="module", autouse=True)
def _is_here() -> None:
    try:
        import symbolic  # noqa: F401
    except ImportError:
        missing("needs the PyPI package symbolic, which has no wheel for this machine")


@pytest.mark.parametrize(("source", "compiler", "least"), [
    (INLINES, "g++", 100),
    (PROGRAMS / "core_threads.c", "gcc", 200),
    (PROGRAMS / "ladder_throw.cc", "g++", 200),
])  # fmt: skip
def test_functions_lines_and_inlined_calls_are_read_alike(
    source: Path, compiler: str, least: int, tmp_path: Path
) -> None:
    program = build(source, tmp_path / "program", "-O2", "-g", "-pthread", compiler=compiler)
    same, differ = compare(str(program))
    assert differ == 0
    assert same >= least


def test_stack_cfi_that_it_writes_is_read_as_the_tables_of_the_file(tmp_path: Path) -> None:
    """Compare rows without expressions: symbolic writes only the remainder of a row with an expression."""
    import symbolic

    program = build(PROGRAMS / "ladder_throw.cc", tmp_path / "program", "-O2", "-g", "-pthread", compiler="g++")
    theirs = next(symbolic.Archive.open(str(program)).iter_objects()).make_cficache().open_stream().read()
    head = b"MODULE Linux x86_64 000000000000000000000000000000000 program\n"
    file = SymbolFile(BytesSource(head + theirs), "theirs.sym", Diagnostics())
    elf = ElfFile.open(str(program))
    tables = READERS["eh_frame"](elf, X86_64, Diagnostics())
    assert tables is not None
    rows = compared = 0
    for function in StackCfi(lambda: file, elf.min_vaddr, X86_64, Diagnostics()).functions():
        for start, rule in zip(function.starts, function.rules, strict=True):
            rows += 1
            wanted = rule_at(tables.function_at(start), start)
            if wanted is None:
                continue
            words = format_rule_fields(wanted, X86_64)
            if words.comparable and not words.outermost:
                compared += 1
                assert format_rule_fields(rule, X86_64).meaning == words.meaning, hex(start)
    assert compared > 50
    assert compared > 0.9 * rows


def rule_at(function: FunctionRows | None, svma: int) -> Rule | None:
    if function is None:
        return None
    at = max(place for place, start in enumerate(function.starts) if start <= svma)
    return function.rules[at]
