"""Tests of Go's runtime, which switches stacks without CFI: the walk follows it, or ends and invents no caller.

The code is that of Go 1.19's runtime on x86-64, whose table has "cfa = sp + 8" for all of each function.
"""

from __future__ import annotations

import struct

import pytest

from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import make_goroutine_pieces
from pyprof.model.unwind_result import StackEnd
from pyprof.objfile.elf_file import ElfFile
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.cfi_sections import DebugFrame, open_debug_frame
from pyprof.unwind.formats.gopclntab import add_stack_switches
from pyprof.unwind.reference_unwinder import Caller, NoCaller
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import FunctionRows, RegKind, RegRule, Rule
from pyprof.unwind.sample_memory import LaneMemory
from tests.unwind.cfi_assembler import Frames, algebra, def_cfa_offset
from tests.unwind.cfi_elf import Content, elf_bytes
from tests.unwind.test_reference_unwinder import SP, apply, memory, registers, step

SVMA = 0x1000

SYSTEMSTACK = bytes.fromhex(
    "488b7c2408 64488b0425f8ffffff 488b5830 483b4350 745b 488b13 4839d0 7453 483b83c0000000 7552 e8d2f1ffff "
    "6448891425f8ffffff 4989d6 488b5a38 4889dc 4889fa 488b3f ffd7 "  # switches stacks at 0x41, call returns to 0x49
    "64488b0425f8ffffff 488b5830 488b83c0000000 6448890425f8ffffff 488b6038 48c7403800000000 c3 4889fa 488b3f ffe7"
)
MCALL = bytes.fromhex("4889c2 488b1c24 49895e40 4c89f0 4989f6 498b6638 50 4c8b22 41ffd4 58 e917450000 c3")
NANOTIME = bytes.fromhex("4883ec18 4989e4 488b6238 4883ec10 4883e4f0 ffd0 488b0424 4c89e4 4883c418 c3")
COMPILED = bytes.fromhex("4883ec18 48896c2410 488d6c2410 488b4038 ffd1 488b6c2410 4883c418 c3")

MORESTACK = bytes.fromhex("64488b3425f8ffffff 48895668 488b1b 488b6338 e8f5460000 e8301f0000 c3")
ASMCGOCALL = bytes.fromhex(
    "4889e2 488b7638 488b6638 4883ec40 4883e4f0 48897c2430 488b7f08 4829d7 48897c2428 ffd0 "
    "488b7c2430 488b7708 482b742428 4889f4 89442418 c3 "
    "4883ec40 4883e4f0 48c744243000000000 4889542428 ffd0 488b742428 4889f4 c3"
)

ASMCGOCALL_1_26 = bytes.fromhex(
    "4889e2 488b6638 4883ec10 4883e4f0 48897c2408 488b7f08 4829d7 48893c24 e87cffffff "
    "488b7c2408 488b7708 482b3424 4889f4 89442420 c3 "
    "4883ec10 4883e4f0 48c744240800000000 48891424 e836ffffff 488b3424 4889f4 c3"
)
CALL_CGO_MMAP = bytes.fromhex("4889e3 4883e4f0 48891c24 ffd0 488b2424 8944 2430 c3")

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


GOROUTINE = "const8u 9223372036854775808; deref; consts 56; plus; deref"
SCHED_PC = "const8u 9223372036854775808; deref; consts 64; plus; deref"
FROM_C = "breg7 48; deref; consts 8; plus; deref; breg7 40; deref; minus"
FROM_C_1_26 = "breg7 8; deref; consts 8; plus; deref; breg7 0; deref; minus"
LAST = "fp = undefined; ra = [cfa - 8]; switching"


@pytest.mark.parametrize(
    ("name", "code", "rows"),
    [
        ("systemstack", SYSTEMSTACK, [TABLE, f"cfa = expr({GOROUTINE}; consts 8; plus); {LAST}", TABLE]),
        ("morestack", MORESTACK, [TABLE, f"cfa = expr({GOROUTINE}); fp = undefined; ra = expr({SCHED_PC}); switching"]),
        ("mcall", MCALL, [TABLE, OUTERMOST]),
        ("nanotime1", NANOTIME, [TABLE, f"cfa = r12 + 8; {LAST}", TABLE]),
        (
            "asmcgocall",
            ASMCGOCALL,
            [
                *(TABLE, LOST, f"cfa = expr({FROM_C}; consts 8; plus); {LAST}", TABLE),
                *(LOST, f"cfa = expr(breg7 40; deref; consts 8; plus); {LAST}", TABLE),
            ],
        ),
        (
            "asmcgocall",
            ASMCGOCALL_1_26,
            [
                *(TABLE, LOST, f"cfa = expr({FROM_C_1_26}; consts 8; plus); {LAST}", TABLE),
                *(LOST, f"cfa = expr(breg7 0; deref; consts 8; plus); {LAST}", TABLE),
            ],
        ),
        (
            "callCgoMmap",
            CALL_CGO_MMAP,
            [TABLE, LOST, f"cfa = expr(breg7 0; deref; consts 8; plus); {LAST}", TABLE],
        ),
        ("cgocallback", SYSTEMSTACK, [TABLE]),
        ("compiled", COMPILED, [TABLE]),
    ],
)
def test_rows_of_the_function_table_lead_back_to_the_goroutine(name: str, code: bytes, rows: list[str]) -> None:
    found = add_stack_switches(table_rows(code), f"runtime.{name}", code, X86_64)
    assert [describe_rule(rule, X86_64) for rule in found.rules] == rows


def table_rows(code: bytes) -> FunctionRows:
    return FunctionRows(SVMA, SVMA + len(code), (SVMA,), (Rule(X86_64.sp, 8, RegRule(RegKind.AT_CFA, -8)),))


GOROUTINE_AT, LEFT_AT, RETURN = 0xC000_0000, 0xC000_8000, SVMA + 0x777


def memory_with_goroutine(saved: bytes) -> LaneMemory:
    words = memory({SP: 0x1234, SP + 8: 0x5678}, X86_64)
    head = bytes(56) + saved.ljust(104, b"\0")
    stack = struct.pack("<4Q", RETURN, 1, 2, 3)
    words._pieces = make_goroutine_pieces(GOROUTINE_AT, head, LEFT_AT, stack)
    return words


@pytest.mark.parametrize(
    ("name", "code", "sp"), [("systemstack", SYSTEMSTACK, LEFT_AT + 8), ("morestack", MORESTACK, LEFT_AT)]
)
def test_step_off_the_scheduler_goes_to_the_goroutine(name: str, code: bytes, sp: int) -> None:
    away = add_stack_switches(table_rows(code), f"runtime.{name}", code, X86_64).rules[1]
    words = memory_with_goroutine(struct.pack("<2Q", LEFT_AT, RETURN))
    outcome = apply(away, registers(X86_64, False, rsp=SP), words)
    assert isinstance(outcome, Caller)
    assert (outcome.registers.values[X86_64.pc], outcome.registers.values[X86_64.sp]) == (RETURN, sp)
    assert not outcome.registers.exact


@pytest.mark.parametrize(
    ("name", "code", "end"),
    [("systemstack", SYSTEMSTACK, StackEnd.NO_RULE), ("morestack", MORESTACK, StackEnd.ROOT)],
)
def test_thread_without_a_goroutine_has_no_caller_there(name: str, code: bytes, end: StackEnd) -> None:
    away = add_stack_switches(table_rows(code), f"runtime.{name}", code, X86_64).rules[1]
    outcome = step(away, {SP: 0x1234, SP + 8: 0x5678})
    assert isinstance(outcome, NoCaller)
    assert (outcome.end, outcome.missing) == (end, 0)


@pytest.mark.parametrize("saved", [0, 1, SP, (1 << 64) - 8, GOROUTINE_AT])
def test_forged_goroutine_costs_its_stack_only(saved: int) -> None:
    away = add_stack_switches(table_rows(SYSTEMSTACK), "runtime.systemstack", SYSTEMSTACK, X86_64).rules[1]
    outcome = apply(away, registers(X86_64, False, rsp=SP), memory_with_goroutine(struct.pack("<Q", saved)))
    assert isinstance(outcome, NoCaller) or outcome.registers.values[X86_64.pc] in (0x1234, 0)


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
