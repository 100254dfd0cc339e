"""Tests of the unwind rules that the code of an AArch64 function proves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import AARCH64
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.code_analysis.aarch64_code_rules import Aarch64CodeRules
from pyprof.unwind.module_unwind_sources import open_sources
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule
from tests.support import missing
from tests.unwind.made_stacks import little_elf

PUSH_RECORD, POP_RECORD = 0xA9BD7BFD, 0xA8C37BFD  # stp x29, x30, [sp, #-48]!; ldp x29, x30, [sp], #48
SET_FP, SP_FROM_FP = 0x910003FD, 0x910003BF  # mov x29, sp; mov sp, x29
SAVE_X19, RESTORE_X19 = 0xF9000BF3, 0xF9400BF3  # str x19, [sp, #16]; ldr x19, [sp, #16]
PUSH_LR, POP_LR = 0xF81F0FFE, 0xF84107FE  # str x30, [sp, #-16]!; ldr x30, [sp], #16
DOWN, UP = 0xD10083FF, 0x910083FF  # sub sp, sp, #32; add sp, sp, #32
LARGE, DOWN_LARGE, UP_LARGE = 0xD28A0210, 0xCB3063FF, 0x8B3063FF  # mov x16, #0x5010; sub/add sp, sp, x16
DOWN_X1 = 0xCB2163FF  # sub sp, sp, x1
SIGN, CHECK = 0xD503233F, 0xD50323BF  # paciasp; autiasp
CALL, RET, NOP, JUMP_X16 = 0x94000400, 0xD65F03C0, 0xD503201F, 0xD61F0200  # bl .+0x1000; ret; nop; br x16
IF_ZERO_SKIP_ONE, IF_ZERO_SKIP_TWO = 0xB4000040, 0xB4000060  # cbz x0, .+8; cbz x0, .+12
CLEAR_FP, SYSTEM_CALL = 0xD280001D, 0xD4000001  # mov x29, #0; svc #0
CLOBBER_LR = 0xAA0003FE  # mov x30, x0
VECTOR_29, FROM_VECTOR = 0x3DC003FD, 0x9E66001D  # ldr q29, [sp]; fmov x29, d0
IN_LR = RegRule(RegKind.REG_PLUS, 0, 30)


def rules_of(words: Sequence[int]) -> list[Rule | None]:
    """Return the rule of each instruction of a function at the entry point of a file, None where there is none."""
    code = b"".join(word.to_bytes(4, "little") for word in (NOP, *words))
    rules = Aarch64CodeRules(little_elf(AARCH64, code, entry=4), None, AARCH64, [])
    found: list[Rule | None] = []
    for at in range(4, len(code), 4):
        piece = rules.piece_at(at)
        found.append(None if piece is None else piece.rows.rules[bisect_right(piece.rows.starts, at) - 1])
    return found


def bases(words: Sequence[int]) -> list[tuple[int, int] | None]:
    """Return (register, offset) of the CFA at each instruction."""
    return [None if rule is None else (rule.cfa_reg, rule.cfa_off) for rule in rules_of(words)]


def test_frame_record_and_saved_register_are_found_between_prologue_and_epilogue() -> None:
    rules = rules_of([PUSH_RECORD, SET_FP, SAVE_X19, CALL, RESTORE_X19, POP_RECORD, RET])
    assert all(rules)
    assert [rule.cfa_off for rule in rules if rule] == [0, 48, 48, 48, 48, 48, 0]
    inside = rules[3]
    assert inside is not None
    assert inside.ra == RegRule(RegKind.AT_CFA, -40)
    assert dict(inside.regs) == {
        19: RegRule(RegKind.AT_CFA, -32),
        29: RegRule(RegKind.AT_CFA, -48),
        30: RegRule(RegKind.AT_CFA, -40),
    }
    assert inside.pac
    assert [rule.ra for rule in rules if rule][::6] == [IN_LR, IN_LR]


@pytest.mark.parametrize(
    ("name", "words", "depths"),
    [
        ("leaf with locals", [DOWN, NOP, UP, RET], [0, 32, 32, 0]),
        ("frame of a size in a register", [LARGE, DOWN_LARGE, NOP, UP_LARGE, RET], [0, 0, 0x5010, 0x5010, 0]),
        ("signed return address", [SIGN, PUSH_LR, CALL, POP_LR, CHECK, RET], [0, 0, 16, 16, 0, 0]),
        ("vector register 29 is not x29", [PUSH_RECORD, VECTOR_29, POP_RECORD, RET], [0, 48, 48, 0]),
    ],
)
def test_cfa_follows_the_stack_pointer(name: str, words: list[int], depths: list[int]) -> None:
    assert bases(words) == [(31, depth) for depth in depths], name


def test_frame_of_variable_size_has_the_frame_pointer_as_base() -> None:
    found = bases([PUSH_RECORD, SET_FP, DOWN_X1, CALL, SP_FROM_FP, POP_RECORD, RET])
    assert found == [(31, 0), (31, 48), (31, 48), (29, 48), (29, 48), (31, 48), (31, 0)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a return at a wrong depth", [DOWN, RET]),
        ("a return without the link register", [CLOBBER_LR, RET]),
        ("two depths at one instruction", [IF_ZERO_SKIP_ONE, DOWN, NOP, RET]),
        ("a register that a vector overwrites", [FROM_VECTOR, PUSH_RECORD, UP, RET]),
        ("an unknown instruction", [0x04205000, RET]),
        ("the stack pointer above the entry's", [UP, DOWN, RET]),
    ],
)
def test_contradiction_gives_no_rule(name: str, words: list[int]) -> None:
    assert rules_of(words)[0] is None, name


def test_overwritten_frame_pointer_is_not_the_callers() -> None:
    rules = rules_of([FROM_VECTOR, PUSH_LR, CALL, POP_LR, RET])
    assert rules[2] is not None
    assert dict(rules[2].regs)[29] == UNDEFINED


def test_overwritten_slot_of_a_register_is_not_the_callers() -> None:
    store_x0 = 0xF9000BE0  # str x0, [sp, #16]
    rules = rules_of([PUSH_RECORD, SAVE_X19, store_x0, NOP, POP_RECORD, RET])
    assert rules[2] is not None
    assert rules[3] is not None
    assert dict(rules[2].regs)[19] == RegRule(RegKind.AT_CFA, -32)
    assert dict(rules[3].regs)[19] == UNDEFINED


def test_call_without_a_saved_return_address_has_no_rule() -> None:
    rules = rules_of([IF_ZERO_SKIP_ONE, RET, CALL, NOP])
    assert rules[0] is not None
    assert rules[2] is None


def test_return_address_in_a_scratch_register_gives_no_rule_and_no_end_of_the_stack() -> None:
    keep_in_x9, ret_x9 = 0xAA1E03E9, 0xD65F0120  # mov x9, x30; ret x9
    rules = rules_of([keep_in_x9, CALL, NOP, ret_x9])
    assert rules[0] is not None
    assert rules[0].ra == IN_LR
    assert rules[1:] == [None, None, None]


def test_code_behind_a_call_needs_a_way_to_a_return() -> None:
    rules = rules_of([PUSH_RECORD, IF_ZERO_SKIP_TWO, POP_RECORD, RET, CALL, 0xD4200000])  # brk
    assert all(rules[:5])
    assert rules[5] is None


def test_code_that_only_an_indirect_jump_reaches_has_its_depth() -> None:
    assert bases([PUSH_RECORD, JUMP_X16, POP_RECORD, RET])[2] == (31, 48)


def test_cleared_frame_pointer_at_the_entry_point_ends_the_stack() -> None:
    rules = rules_of([CLEAR_FP, CALL, CALL])
    assert rules[1] is not None
    assert rules[1].ra is UNDEFINED


WORDS = (PUSH_RECORD, POP_RECORD, SET_FP, SP_FROM_FP, SAVE_X19, RESTORE_X19, PUSH_LR, POP_LR, DOWN, UP, DOWN_X1, CALL,
         RET, JUMP_X16, IF_ZERO_SKIP_ONE, IF_ZERO_SKIP_TWO, CLEAR_FP, SYSTEM_CALL, CLOBBER_LR, 0x17FFFFFE)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS) | st.integers(0, 2**32 - 1), max_size=60))
def test_any_words_give_rules_within_them_or_none(words: list[int]) -> None:
    for rule in rules_of(words):
        assert rule is None or rule.ra is UNDEFINED or rule.cfa_reg in range(32)


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "hidden", "share"),
    [("libc.so.6", False, 0.97), ("libc.so.6", True, 0.96), ("libm.so.6", True, 0.97), ("libstdc++.so.6", True, 0.85)],
)
def test_rules_from_code_agree_with_eh_frame(name: str, hidden: bool, share: float) -> None:
    """Compare each instruction of some functions. With hidden tables, the analysis does not know the functions."""
    path = Path("/usr/aarch64-linux-gnu/lib") / name
    if not path.exists():
        missing("needs the libraries of AArch64: apt-get install gcc-aarch64-linux-gnu g++-aarch64-linux-gnu")
    file = open_object_file(str(path))
    (table,) = open_sources(file, AARCH64, ("eh_frame",), Diagnostics())
    rules = Aarch64CodeRules(file, None, AARCH64, [] if hidden else [table.extents()])
    text = file.sections[".text"]
    functions = [f for f in table.functions() if text.addr <= f.start < text.addr + text.size]
    instructions = given_rules = 0
    wrong = []
    for function in functions[:: max(len(functions) // 200, 1)]:
        for at in range(function.start, function.end, 4):
            instructions += 1
            piece = rules.piece_at(at)
            theirs = function.rules[bisect_right(function.starts, at) - 1]
            ours = None if piece is None else piece.rows.rules[bisect_right(piece.rows.starts, at) - 1]
            if ours is None or UNDEFINED in (ours.ra, theirs.ra):
                continue
            given_rules += 1
            if not agree(ours, theirs, function):
                wrong.append((hex(at), ours, theirs))
    assert wrong == []
    assert given_rules > share * instructions > 1000


def agree(ours: Rule, theirs: Rule, function: FunctionRows) -> bool:
    """Return True if two rules give the same caller.

    A register that was just saved, or just restored, has the same value in the frame.
    """
    if ours.cfa_reg == theirs.cfa_reg and ours.cfa_off != theirs.cfa_off:
        return False
    places = {rule.ra for rule in function.rules}
    if ours.ra != theirs.ra and not (IN_LR in (ours.ra, theirs.ra) and {ours.ra, theirs.ra} <= places | {IN_LR}):
        return False
    saved, known = dict(ours.regs), dict(theirs.regs)
    return all(saved[r] in (known[r], UNDEFINED) for r in saved.keys() & known.keys())
