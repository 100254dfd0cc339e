"""Fuzz tests of CFI with mutated and random sections: rows or FormatError in bounded time and memory."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.arch import AARCH64, ARM, I386, S390X, X86_64, Arch
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_cie_and_fde import CfiSection
from pyprof.unwind.formats.cfi_fde_index import NAME, read_search_table
from pyprof.unwind.formats.cfi_sections import CfiTable, EhFrame
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import FunctionRows, RegKind
from tests.unwind.cfi_assembler import Frames, ra_register

pytestmark = pytest.mark.fuzz

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ARCHES = (X86_64, I386, AARCH64, ARM, S390X)
FIRST_BYTES = 3000


def real() -> tuple[bytes, int, bytes, int]:
    """Return truncated .eh_frame and .eh_frame_hdr of the C library: (bytes, svma, bytes, svma)."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    elf = ElfFile.open(next(line.split()[5] for line in lines if "/libc" in line))
    frames, header = elf.section(".eh_frame"), elf.section(NAME)
    assert frames is not None
    assert header is not None
    return (
        *(bytes(frames[:FIRST_BYTES]), elf.sections[".eh_frame"].addr),
        *(bytes(header[: FIRST_BYTES // 4]), elf.sections[NAME].addr),
    )


FRAMES, FRAMES_SVMA, HDR, HDR_SVMA = real()


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    """Generate data with bytes changed, removed and inserted."""
    place = st.integers(0, len(data))
    change = st.tuples(place, st.integers(0, 6), st.binary(max_size=12))

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        out = bytearray(data)
        for at, cut, put in changes:
            out[at : at + (len(put) if cut == 6 else cut)] = put
        return bytes(out)

    return st.lists(change, min_size=1, max_size=8).map(apply)


def check(function: FunctionRows, arch: Arch) -> None:
    assert function.start <= function.end <= 1 << (8 * arch.word)
    assert len(function.starts) == len(function.rules)
    assert list(function.starts) == sorted(set(function.starts))
    for at, rule in zip(function.starts, function.rules, strict=True):
        assert function.start <= at < function.end
        assert -1 <= rule.cfa_reg < len(arch.registers)
        assert (rule.cfa_reg >= 0) != bool(rule.cfa_expr)
        for column, reg in (*rule.regs, (0, rule.ra)):
            assert 0 <= column < len(arch.registers)
            assert -(1 << 63) <= reg.n < 1 << 63
            assert (reg.reg >= 0) == (reg.kind in (RegKind.REG_PLUS, RegKind.AT_REG))
        assert describe_rule(rule, arch).startswith("cfa = ")


def ask_everything(section: CfiSection, arch: Arch, header: tuple[memoryview, int] | None) -> None:
    """Query each function, its edges, and addresses without a function."""
    source = EhFrame(section, header, arch, Diagnostics())
    table = CfiTable(section, arch, Diagnostics())
    edges = {0, 1, (1 << 64) - 1}
    for function in table.functions():
        check(function, arch)
    for start, end in zip(table.index.start.tolist(), table.index.end.tolist(), strict=True):
        edges |= {start - 1, start, end - 1, end}
    for svma in sorted(edges)[:400]:
        try:
            found = source.function_at(svma)
        except FormatError:
            continue
        if found is not None:
            assert found.start <= svma < found.end
            check(found, arch)


@QUICK
@given(mutated(FRAMES), st.sampled_from(ARCHES), st.booleans(), st.sampled_from(["little", "big"]))
def test_mutated_section_gives_rows_or_format_error(data: bytes, arch: Arch, eh: bool, byteorder: str) -> None:
    name = ".eh_frame" if eh else ".debug_frame"
    section = CfiSection(name, memoryview(data), FRAMES_SVMA, eh, byteorder, arch.word)
    ask_everything(section, arch, None)


@QUICK
@given(mutated(FRAMES), mutated(HDR))
def test_mutated_section_behind_a_mutated_table_gives_rows_or_format_error(data: bytes, header: bytes) -> None:
    section = CfiSection(".eh_frame", memoryview(data), FRAMES_SVMA, True)
    ask_everything(section, X86_64, (memoryview(header), HDR_SVMA))


@QUICK
@given(st.binary(max_size=400), st.sampled_from(ARCHES), st.booleans(), st.sampled_from(["little", "big"]))
def test_random_section_gives_rows_or_format_error(data: bytes, arch: Arch, eh: bool, byteorder: str) -> None:
    name = ".eh_frame" if eh else ".debug_frame"
    ask_everything(CfiSection(name, memoryview(data), 0x1000, eh, byteorder, arch.word), arch, None)


@QUICK
@given(st.binary(max_size=60), st.binary(max_size=120), st.sampled_from(ARCHES), st.sampled_from([1, 2, 4, 255]))
def test_random_instructions_give_rows_or_format_error(initial: bytes, code: bytes, arch: Arch, align: int) -> None:
    frames = Frames(word=arch.word, byteorder=arch.byteorder)
    cie = frames.cie(initial, code_align=align, ra=ra_register(arch), data_align=-arch.word)
    frames.fde(cie, 0x1000, 0x10000, code)
    ask_everything(frames.section(), arch, None)


@QUICK
@given(st.binary(max_size=80), st.sampled_from(["little", "big"]))
def test_random_table_gives_a_sorted_one_or_format_error(data: bytes, byteorder: str) -> None:
    section = CfiSection(".eh_frame", memoryview(FRAMES), FRAMES_SVMA, True, byteorder)
    try:
        table = read_search_table(memoryview(data), HDR_SVMA, section)
    except FormatError:
        return
    if table is not None:
        assert list(table.start) == sorted(table.start)
        assert all(0 <= offset < len(FRAMES) for offset in table.offset)


@QUICK
@given(st.binary(min_size=1, max_size=40), st.sampled_from(ARCHES))
def test_any_expression_is_described(expression: bytes, arch: Arch) -> None:
    frames = Frames(word=arch.word, byteorder=arch.byteorder)
    code = b"\x0f" + bytes([len(expression)]) + expression
    at = frames.fde(frames.cie(b"", ra=ra_register(arch)), 0x1000, 0x10, code)
    assert frames.rows(at, arch)[0].startswith("+0x0 cfa = ")


@pytest.mark.parametrize(
    ("code", "problem"),
    [(b"\x0a" * 100_000, "too many states"), (b"\x0e\x10\x41\x0e\x18\x41" * 200_000, "1200003 bytes of instructions")],
)
def test_function_that_would_cost_too_much_is_refused(code: bytes, problem: str) -> None:
    frames = Frames()
    at = frames.fde(frames.cie(), 0x1000, 0x10, code + bytes(-(len(code) + 1) % 4))
    table = frames.table()
    with pytest.raises(FormatError, match=problem):
        table.programs.rows(table.entries.fde(at))
    assert list(table.functions()) == []


@pytest.mark.parametrize("of", [1 << 63, (1 << 64) - 2, 1 << 40])
def test_cie_beyond_all_addresses_is_a_format_error(of: int) -> None:
    data = memoryview(struct.pack("<IQQ", 0xFFFF_FFFF, 32, of) + bytes(24))
    table = CfiTable(CfiSection(".debug_frame", data, 0x1000, False), X86_64, Diagnostics())
    with pytest.raises(FormatError, match="outside the section"):
        table.entries.fde(0)
    assert list(table.functions()) == []


@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"\x04\0\0\0", b"\x04\0\0\0\x01\0\0\0", b"\x05\0\0\0\0\0\0\0\1"])
def test_large_section_without_sense_has_no_functions(filling: bytes) -> None:
    data = memoryview(filling * ((4 << 20) // len(filling)))
    for eh in (True, False):
        table = CfiTable(CfiSection(".eh_frame", data, 0x1000, eh), X86_64, Diagnostics())
        assert table.find(0x1000) is None
