"""Fuzz tests of symbol files and postfix programs: only FormatError or PostfixFailed, in bounded time and memory."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.arch import AARCH64, ARM, I386, X86_64, Arch
from pyprof.objfile import breakpad_index
from pyprof.objfile.breakpad_records import WinRecord
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.byte_source import BytesSource
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.breakpad_names import SymbolFileNames
from pyprof.tools.breakpad_writer import SymbolWriter
from pyprof.unwind.formats.breakpad_postfix_expressions import PostfixFailed, run_program
from pyprof.unwind.formats.breakpad_stack_cfi import StackCfi
from pyprof.unwind.formats.breakpad_stack_win import INNERMOST, find_win_caller
from pyprof.unwind.rule_cache import encode_fast_rule
from tests.breakpad.support import HEAD
from tests.breakpad.test_reader import SMALL
from tests.support import build
from tests.symbolize.test_source_lines import PROGRAMS

pytestmark = [pytest.mark.fuzz, pytest.mark.system]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    program = tmp_path_factory.mktemp("fuzz") / "program"
    build(PROGRAMS / "inlines.cc", program, "-O2", "-g", compiler="g++")
    out = io.BytesIO()
    SymbolWriter(str(program)).write(out)
    return out.getvalue()


def exhaust(data: bytes, arch: Arch) -> None:
    """Call every query of a symbol file."""
    diagnostics = Diagnostics()
    try:
        file = SymbolFile(BytesSource(data), "fuzzed.sym", diagnostics)
    except FormatError:
        return
    names = SymbolFileNames(file)
    index = file.index
    found = [ranges.address.tolist() for ranges in (index.functions, index.publics, index.win[4], index.win[0])]
    for address in [at for addresses in found for at in addresses[:40]]:
        for at in (address, address + 1, address - 1):
            names.find(at)
            record = file.win_at(at)
            if record is not None:
                win(record, at)
    source = StackCfi(lambda: file, 0x1000, arch, diagnostics)
    rows = 0
    for function in source.functions():
        assert function.start < function.end
        assert function.start == function.starts[0]
        assert all(a < b for a, b in zip(function.starts, (*function.starts[1:], function.end), strict=True))
        assert all(encode_fast_rule(rule, arch) is not None for rule in function.rules)
        rows += len(function.rules)
        source.function_at(function.start)
    assert rows <= data.count(b"\n") + 1
    assert sum(map(len, diagnostics.problems.values())) <= 8


def win(record: WinRecord, esp: int) -> None:
    try:
        found = find_win_caller(
            record, {"esp": esp, "ebp": 5, "eip": 6}, INNERMOST, lambda avma, size: avma & 0xFFFF_FFFF
        )
    except PostfixFailed:
        return
    assert {"eip", "esp"} <= set(found)


RECORDS = [b"m ", b"FUNC ", b"PUBLIC ", b"FILE ", b"INLINE ", b"STACK CFI INIT ", b"STACK CFI ", b"STACK WIN 4 ", b"\n"]
PARTS = [b" ", b"\r\n", b"f" * 16, b"1" + b"0" * 16, b"-1", b".cfa: ", b"^", b"=", b"0x1", b"\0", b"\xff", b":"]


def mutated(choose: st.DataObject, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.draw(st.integers(1, 6))):
        at = choose.draw(st.integers(0, len(changed)))
        size = choose.draw(st.integers(0, 12))
        changed[at : at + size] = choose.draw(st.sampled_from([*RECORDS, *PARTS]) | st.binary(max_size=6))
    return bytes(changed[: choose.draw(st.just(len(changed)) | st.integers(0, len(changed)))])


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([X86_64, I386, ARM, AARCH64]))
def test_mutated_records_give_records_or_format_error(choose: st.DataObject, arch: Arch) -> None:
    exhaust(mutated(choose, (HEAD + SMALL).encode()), arch)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_mutated_written_file_gives_records_or_format_error(real: bytes, choose: st.DataObject) -> None:
    exhaust(mutated(choose, real), X86_64)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(80, 300))
def test_chunks_may_end_anywhere(choose: st.DataObject, size: int) -> None:
    data = mutated(choose, (HEAD + SMALL).encode())
    with pytest.MonkeyPatch.context() as patch:
        whole = columns(data)
        patch.setattr(breakpad_index, "CHUNK", size)
        if all(len(line) < size for line in data.split(b"\n")):
            assert columns(data) == whole
        exhaust(data, X86_64)


def columns(data: bytes) -> list[list[int]]:
    index = breakpad_index.build_index(BytesSource(data), lambda what, line, times: None)
    ranges = (index.functions, index.publics, index.cfi, index.win[4], index.win[0])
    found = [column.tolist() for r in ranges for column in (r.address, r.size, r.offset)]
    return [*found, index.files.offset.tolist(), index.origins.number.tolist(), [index.lines]]


TOKENS = st.sampled_from(
    ["+", "-", "*", "/", "%", "@", "^", "=", "=$x", "$x", "$esp", ".undef", ".cfa", "-1", "8", "x"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(TOKENS | st.text(max_size=4), max_size=30))
def test_any_program_ends_with_words_or_a_failure(words: list[str]) -> None:
    try:
        found = run_program(" ".join(words), {"$esp": 5, ".cfa": 7}, lambda avma, size: avma, 4)
    except PostfixFailed:
        return
    assert all(0 <= value < 1 << 32 for value in found.values())
