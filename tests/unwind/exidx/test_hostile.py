"""Fuzz tests of EXIDX: rows or FormatError in bounded time."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.arch import ARM
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.exidx_section import open_exidx
from pyprof.unwind.formats.exidx_unwind_instructions import compile_rule, decode_opcodes
from pyprof.unwind.rule_text import describe_rule
from tests.unwind.exidx.test_libraries import library
from tests.unwind.exidx.writer import TABLES, TEXT, wrap

pytestmark = [pytest.mark.fuzz, pytest.mark.system]

MAX_EXPRESSION = 64


def use(image: bytes, places: list[int]) -> None:
    """Call every method of a source."""
    with contextlib.suppress(FormatError):
        elf = ElfFile.from_bytes(image, "broken")
        source = open_exidx(elf, ARM, Diagnostics())
        if source is None:
            return
        for svma in places:
            with contextlib.suppress(FormatError):
                rows = source.function_at(svma)
                assert rows is None or rows.start <= svma < rows.end
        last = 0
        for number, rows in enumerate(source.functions()):
            assert last <= rows.start < rows.end
            last = rows.end
            if number < 50:
                assert describe_rule(rows.rules[0], ARM)


@settings(deadline=None)
@given(st.binary(max_size=600), st.integers(0, 75), st.sampled_from("<>"))
def test_random_tables_give_rows_or_format_error(tables: bytes, start: int, order: str) -> None:
    index_at = TABLES + min(8 * start, len(tables) & ~7)
    use(wrap(tables, index_at, TABLES + len(tables) - index_at, 1 << 20, order), [TEXT, TEXT + 0x1000, TABLES])


@settings(deadline=None)
@given(st.binary(max_size=1022))
def test_random_instructions_give_a_rule_or_format_error(code: bytes) -> None:
    with contextlib.suppress(FormatError):
        rule = compile_rule(decode_opcodes(code, "s", 0), ARM, "s", 0)
        if rule is not None:
            assert len(rule.cfa_expr) <= MAX_EXPRESSION
            assert all(len(how.expr) <= MAX_EXPRESSION for _, how in rule.regs)
            assert describe_rule(rule, ARM)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0x84, 0x97, 0xA0, 0xA8, 0x8F, 0xFF, 0x94, 0x9B, 0x41, 0x80, 0x82]), max_size=1022))
def test_instructions_that_load_vsp_again_and_again_stay_small(codes: list[int]) -> None:
    test_random_instructions_give_a_rule_or_format_error.hypothesis.inner_test(bytes(codes))  # type: ignore[attr-defined]


@cache
def small_library() -> bytes:
    return Path(library("libgcc_s.so.1")).read_bytes()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 17), st.binary(min_size=1, max_size=8)), min_size=1, max_size=8))
def test_mutated_library_gives_rows_or_format_error(changes: list[tuple[int, bytes]]) -> None:
    image = bytearray(small_library())
    for at, data in changes:
        at %= len(image)
        image[at : at + len(data)] = data[: len(image) - at]
    use(bytes(image), [0x15CE4, 0x16000])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 0x400), st.binary(min_size=1, max_size=8)), min_size=1, max_size=8))
def test_mutated_tables_of_a_library_give_rows_or_format_error(changes: list[tuple[int, bytes]]) -> None:
    elf = ElfFile.from_bytes(small_library(), "libgcc_s.so.1")
    index, table = elf.sections[".ARM.exidx"], elf.sections[".ARM.extab"]
    image = bytearray(small_library())
    for at, data in changes:
        place = min(table.offset, index.offset) + at % (table.size + index.size)
        image[place : place + len(data)] = data
    use(bytes(image), [0x15CE4, 0x16000])
