"""Tests of the function tables of Windows x64 modules: each operation, chains, epilogues, and broken tables."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import FormatError
from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import Trust
from pyprof.objfile.pe import PeFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.pdata import MAX_CHAIN, Pdata, open_pdata
from pyprof.unwind.rules import RegKind, Rule
from tests.unwind import windows_module as made
from tests.unwind.windows_module import BASE, TEXT, XDATA, step, unwind_info, windows_module

SP = X86_64.sp
RBX, RSI, RDI, RBP, R12 = (X86_64.registers.index(name) for name in ("rbx", "rsi", "rdi", "rbp", "r12"))
NOPS = b"\x90" * 64


def opened(
    info: bytes, text: bytes = NOPS, entries: tuple[tuple[int, int, int], ...] = ((TEXT, TEXT + 64, XDATA),)
) -> Pdata:
    source = open_pdata(PeFile.from_bytes(windows_module(text, entries, info), "made"), X86_64, Diagnostics())
    assert source is not None
    return source


def rule(source: Pdata, offset: int) -> Rule:
    rows = source.function_at(BASE + TEXT + offset)
    assert rows is not None
    return rows.rules[bisect_right(rows.starts, BASE + TEXT + offset) - 1]


def cfa(found: Rule) -> tuple[int, int]:
    return found.cfa_reg, found.cfa_off


def saved(found: Rule) -> dict[int, int]:
    return {register: how.n for register, how in found.regs if how.kind is RegKind.AT_CFA}


def test_prologue_has_a_row_after_each_instruction() -> None:
    source = opened(
        unwind_info(step(8, made.ALLOC_SMALL, 4), step(4, made.PUSH_NONVOL, 12), step(1, made.PUSH_NONVOL, 3))
    )
    assert [cfa(rule(source, at)) for at in (0, 1, 3, 4, 7, 8, 63)] == [
        (SP, 8), (SP, 16), (SP, 16), (SP, 24), (SP, 24), (SP, 64), (SP, 64),
    ]  # fmt: skip
    assert saved(rule(source, 8)) == {RBX: -16, R12: -24}
    assert (source.trust, rule(source, 8).ra.n) == (Trust.PDATA, -8)


@pytest.mark.parametrize(
    ("info", "expected", "registers"),
    [
        (unwind_info(step(7, made.ALLOC_LARGE, 0, 0x100)), (SP, 0x808), {}),
        (unwind_info(step(7, made.ALLOC_LARGE, 1, 0x4560, 0x12)), (SP, 0x124568), {}),
        (unwind_info(step(9, made.SAVE_NONVOL, 6, 5), step(4, made.ALLOC_SMALL, 15)), (SP, 136), {RSI: 40 - 136}),
        (
            unwind_info(step(9, made.SAVE_NONVOL_FAR, 7, 0x20, 1), step(4, made.ALLOC_LARGE, 1, 0x28, 2)),
            (SP, 0x20030),
            {RDI: 0x10020 - 0x20030},
        ),
        (unwind_info(step(9, made.XMM, 6, 1), step(5, made.XMM_FAR, 7, 1, 0), step(1, made.ALLOC_SMALL, 1)), (SP, 24),
         {}),
        (
            unwind_info(
                step(12, made.ALLOC_SMALL, 3), step(5, made.SET_FPREG), step(1, made.PUSH_NONVOL, 5), frame=5, offset=0
            ),
            (RBP, 16),
            {RBP: -16},
        ),
        (
            unwind_info(
                step(12, made.SET_FPREG), step(5, made.ALLOC_SMALL, 7), step(1, made.PUSH_NONVOL, 5), frame=5, offset=2
            ),
            (RBP, 80 - 32),
            {RBP: -16},
        ),
    ],
)  # fmt: skip
def test_operation_changes_the_frame(info: bytes, expected: tuple[int, int], registers: dict[int, int]) -> None:
    found = rule(opened(info), 40)
    assert (cfa(found), saved(found)) == (expected, registers)


@pytest.mark.parametrize(("operand", "size"), [(0, 40), (1, 48)])
def test_frame_of_an_interrupt_has_the_words_that_the_processor_pushed(operand: int, size: int) -> None:
    found = rule(opened(unwind_info(step(0, made.MACHINE, operand))), 9)
    assert (cfa(found), found.ra.n, found.signal) == ((SP, size), -40, True)
    assert saved(found)[SP] == -16


def test_registers_that_windows_keeps_are_kept() -> None:
    kinds = {register: how.kind for register, how in rule(opened(unwind_info()), 5).regs}
    assert kinds == {RSI: RegKind.SAME, RDI: RegKind.SAME}


def test_part_of_a_function_continues_the_part_to_which_it_is_chained() -> None:
    first = unwind_info(step(5, made.ALLOC_SMALL, 3), step(1, made.PUSH_NONVOL, 3))
    chained = unwind_info(step(4, made.PUSH_NONVOL, 6), chained=(TEXT, TEXT + 32, XDATA))
    entries = ((TEXT, TEXT + 32, XDATA), (TEXT + 32, TEXT + 64, XDATA + len(first)))
    source = opened(first + chained, NOPS, entries)
    assert [cfa(rule(source, at)) for at in (20, 32, 36)] == [(SP, 48), (SP, 48), (SP, 56)]
    assert saved(rule(source, 36)) == {RBX: -16, RSI: -56}


def test_entry_may_name_another_entry_of_the_table() -> None:
    entries = ((TEXT, TEXT + 32, XDATA), (TEXT + 32, TEXT + 64, made.PDATA | 1))
    assert cfa(rule(opened(unwind_info(step(4, made.ALLOC_SMALL, 3)), NOPS, entries), 40)) == (SP, 40)


PROLOGUE = bytes.fromhex("53 56 4154 4883ec20")
PUSHED = (step(8, made.ALLOC_SMALL, 3), *(step(at, made.PUSH_NONVOL, n) for at, n in ((4, 12), (2, 6), (1, 3))))
UNDONE = bytes.fromhex("4883c420 415c 5e 5b")


@pytest.mark.parametrize("leaving", ["c3", "f3c3", "c20800", "e900000000", "eb00", "ff2500000000", "48ffe0"], ids=str)
def test_epilogue_undoes_the_prologue_step_by_step(leaving: str) -> None:
    text = (PROLOGUE + b"\x90" * 12 + UNDONE + bytes.fromhex(leaving)).ljust(64, b"\x90")
    source = opened(unwind_info(*PUSHED), text)
    assert [cfa(rule(source, 20 + at))[1] for at in (-1, 0, 4, 6, 7, 8)] == [64, 64, 32, 24, 16, 8]
    assert [saved(rule(source, 20 + at)) for at in (4, 6, 8)] == [
        {RBX: -16, RSI: -24, R12: -32}, {RBX: -16, RSI: -24}, {},
    ]  # fmt: skip
    assert cfa(rule(source, 60)) == (SP, 64)


@pytest.mark.parametrize("code", ["4883c420 5e 415c 5b c3", "4883c420 415c 5e 5b 90"])
def test_code_that_undoes_something_else_is_no_epilogue(code: str) -> None:
    source = opened(unwind_info(*PUSHED), (PROLOGUE + bytes.fromhex(code)).ljust(64, b"\x90"))
    assert {cfa(rule(source, at)) for at in range(8, 64)} == {(SP, 64)}


def test_pop_and_return_inside_of_an_instruction_are_no_epilogue() -> None:
    code = bytes.fromhex("53 48c7c000005bc3 5b c3").ljust(64, b"\x90")  # mov $0xc35b0000,%rax
    source = opened(unwind_info(step(1, made.PUSH_NONVOL, 3)), code)
    assert [cfa(rule(source, at))[1] for at in (1, 6, 8, 9)] == [16, 16, 16, 8]


def test_epilogue_of_a_frame_of_unknown_size_goes_back_by_its_frame_register() -> None:
    steps = (step(5, made.SET_FPREG), step(2, made.PUSH_NONVOL, 6), step(1, made.PUSH_NONVOL, 5))
    code = bytes.fromhex("55 56 4889e5 9090 488d6500 5e 5d c3").ljust(64, b"\x90")
    source = opened(unwind_info(*steps, frame=5), code)
    assert [cfa(rule(source, at)) for at in (7, 11, 12, 13)] == [(RBP, 24), (SP, 24), (SP, 16), (SP, 8)]


def test_version_2_states_epilogues_that_are_no_steps() -> None:
    epilogues = (step(9, made.EPILOG, 1), step(20, made.EPILOG))
    source = opened(unwind_info(*epilogues, step(4, made.ALLOC_SMALL, 3), version=2))
    assert cfa(rule(source, 30)) == (SP, 40)


@pytest.mark.parametrize(
    "info",
    [
        unwind_info(step(4, 11)),
        unwind_info(step(4, made.ALLOC_LARGE)),
        unwind_info(version=3),
        unwind_info(chained=(TEXT, TEXT + 64, XDATA)),
        unwind_info(chained=(TEXT, TEXT + 64, 0x7FFF_0000)),
        b"\1\0",
    ],
)
def test_broken_unwind_info_is_an_error_of_the_function(info: bytes) -> None:
    with pytest.raises(FormatError):
        opened(info).function_at(BASE + TEXT)


def test_table_that_does_not_ascend_is_sorted_and_counted() -> None:
    entries = ((TEXT + 32, TEXT + 64, XDATA), (TEXT, TEXT + 32, XDATA), (0, 0, 0))
    source = opened(unwind_info(step(4, made.ALLOC_SMALL, 3)), NOPS, entries)
    assert [cfa(rule(source, at)) for at in (5, 37)] == [(SP, 40), (SP, 40)]
    assert len(source.extents()[0]) == 2


@given(st.binary(min_size=4, max_size=64), st.binary(max_size=64))
def test_hostile_unwind_info_gives_rows_or_an_error(info: bytes, text: bytes) -> None:
    try:
        rows = opened(info, text.ljust(64, b"\x90")).function_at(BASE + TEXT)
    except FormatError:
        return
    assert rows is not None
    assert list(rows.starts) == sorted(set(rows.starts))
    assert len(rows.starts) == len(rows.rules) <= 64
    assert rows.starts[0] == rows.start
    assert rows.starts[-1] < rows.end


def test_chain_of_many_parts_ends() -> None:
    size = len(unwind_info(chained=(0, 0, 0)))
    parts = [unwind_info(chained=(TEXT, TEXT + 64, XDATA + size * (n + 1))) for n in range(MAX_CHAIN - 1)]
    opened(b"".join([*parts, unwind_info()])).function_at(BASE + TEXT)
    with pytest.raises(FormatError, match="endless"):
        opened(b"".join([*parts, parts[-1], unwind_info(chained=(0, 1, XDATA))])).function_at(BASE + TEXT)
