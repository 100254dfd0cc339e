"""Tests of the unwind rules of virtual threads, with the code of HotSpot's stubs and made stacks."""

from __future__ import annotations

from bisect import bisect_right

import pytest

from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.runtime_code.hotspot.code_cache import Blob
from pyprof.runtime_code.hotspot.unwind_rules import FrameRules
from pyprof.unwind.dwarf_expressions import Budget
from pyprof.unwind.reference_unwinder import Caller, NoCaller, Registers, apply_rule
from pyprof.unwind.rule_cache import KnownRule
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import Rule
from pyprof.unwind.sample_memory import LaneMemory
from tests.unwind.made_stacks import MadeLane, batch_of

ENTRY_SIZE = 64
CACHE = (0x7F00_0000_0000, 0x7F00_1000_0000)
"""Memory that is reserved for generated code."""
RETURN = CACHE[0] + 0x1234
SP = 0x7FFE_0000

_CALL = "4883ec08 e800000000 4883c408 e905000000 e800000000 488bd8"
_THAW = f"59 498bff %s 40f6c40f 0f8412000000 {_CALL} 4885db 7505 e900000000 482be3 4883e4f0 498bff %s {_CALL} 4833c0"
_LEAVE = "488be3 4883ec10 5d c3"
_BARRIER = (
    f"498ba738050000 50 4883ec10 c5fb110424 498bff %s 40f6c40f 0f8412000000 {_CALL} c5fb100424 4883c410 58 4885db 7505"
    f" e900000000 482be3 4883e4f0 50 4883ec10 c5fb110424 498bff %s {_CALL} c5fb100424 4883c410 58"
)
_KINDS = {"21": "48c7c6{:02x}000000", "25": "be{:02x}000000"}


def stubs(version: str) -> tuple[bytes, int]:
    """Return the code of the stubs that thaw frames in a version of the JDK, and the offset of the second one."""
    kind = _KINDS[version].format
    thaw, barrier = (code % (kind(number), kind(number)) for number, code in enumerate((_THAW, _BARRIER)))
    first = bytes.fromhex(thaw + _LEAVE)
    return first + bytes.fromhex(barrier + _LEAVE), len(first)


@pytest.mark.parametrize("version", _KINDS)
def test_stubs_that_thaw_frames_have_rows_up_to_the_frame_below(version: str) -> None:
    code, barrier = stubs(version)
    start = 0x1000
    blob = Blob(0x800, b"", "StubRoutines (continuation stubs)", start, start + len(code), 0, 0)
    returns, parts = FrameRules(X86_64).continuations(blob, code, ENTRY_SIZE)
    assert returns == [start + barrier]

    def rule(offset: int) -> str | None:
        pc = start + offset
        rows = next((rows for rows in parts if rows.start <= pc < rows.end), None)
        if rows is None:
            return None
        text = describe_rule(rows.rules[bisect_right(rows.starts, pc) - 1], X86_64)
        return "; ".join(part for part in text.split("; ") if "undefined" not in part)

    def saved(size: int) -> str:
        return f"cfa = sp + {size}; fp = [cfa - 16]; ra = [cfa - 8]"

    assert rule(0) == "cfa = sp + 8; ra = [cfa - 8]"
    assert rule(1) == "cfa = fp + 16; fp = [cfa - 16]; ra = [cfa - 8]"
    leaves = [at for at in range(len(code)) if code.startswith(bytes.fromhex("5dc3"), at)]
    assert [rule(at) for at in leaves] == [saved(16)] * 2
    assert [rule(at + 1) for at in leaves] == ["cfa = sp + 8; ra = [cfa - 8]"] * 2
    inside = code[barrier:]
    call = inside.index(b"\xe8")
    assert [rule(barrier + at) for at in (0, 7, 8, 12, call, call + 5)] == [
        saved(80 + size) for size in (0, 0, 8, 24, 32, 32)
    ]
    assert rule(barrier + inside.index(bytes.fromhex("c5fb100424"))) == saved(104)
    assert rule(barrier + inside.index(bytes.fromhex("4885db"))) == saved(80)
    second = inside.index(bytes.fromhex("4883e4f0"))
    assert rule(barrier + second) is None, "the size of the frames that are copied is not known"


def test_blob_without_these_stubs_has_no_rows() -> None:
    code = stubs("21")[0].replace(b"\x49\x8b\xa7", b"\x49\x8b\x97")
    blob = Blob(0x800, b"", "StubRoutines (1)", 0x1000, 0x1000 + len(code), 0, 0)
    assert FrameRules(X86_64).continuations(blob, code, ENTRY_SIZE) == ([], [])


def caller(words: dict[int, int]) -> Caller | NoCaller:
    """Return the caller of a frame that the last thawed frame returns to, with these words from SP on."""
    memory = {SP + at: words.get(at, 0) for at in range(0, 0x400, 8)}
    batch = batch_of(X86_64, [MadeLane({}, memory, [], SP, 0x400)])
    values: list[int | None] = [None] * len(X86_64.registers)
    values[X86_64.sp], values[X86_64.pc] = SP, 0x1000
    rule: Rule = FrameRules(X86_64).thawed(ENTRY_SIZE, CACHE)
    known = KnownRule(rule, Trust.HOTSPOT)
    return apply_rule(known, Registers(values, exact=False), LaneMemory(batch, 0), X86_64, 0, Budget())


@pytest.mark.parametrize("arguments", [0, 16, 32, 240])
def test_frame_below_thawed_frames_is_found_above_their_arguments(arguments: int) -> None:
    found = caller({arguments + 64: 0x7FFE_4444, arguments + 72: RETURN, arguments + 72 + 16: RETURN + 8})
    assert isinstance(found, Caller)
    values = found.registers.values
    assert (values[X86_64.pc], values[X86_64.fp]) == (RETURN, 0x7FFE_4444)
    assert values[X86_64.sp] == SP + arguments + 80


@pytest.mark.parametrize("word", [0, CACHE[0] - 1, CACHE[1], (1 << 64) - 1])
def test_stack_without_a_return_into_generated_code_is_cut(word: int) -> None:
    found = caller(dict.fromkeys(range(0, 0x400, 8), word))
    assert isinstance(found, NoCaller)
    assert found.end == StackEnd.UNREADABLE
