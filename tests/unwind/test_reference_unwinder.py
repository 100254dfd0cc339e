"""Tests of unwinding one frame by one rule: each kind of rule, and each way to end."""

from __future__ import annotations

import pytest

from pyprof.model.arch import AARCH64, X86_64, Arch
from pyprof.model.sample_batch import SampleKind
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.unwind.dwarf_expressions import Budget
from pyprof.unwind.reference_unwinder import Caller, NoCaller, Registers, apply_rule
from pyprof.unwind.rule_cache import KnownRule
from pyprof.unwind.rules import SAME, UNDEFINED, RegKind, RegRule, Rule
from pyprof.unwind.sample_memory import LaneMemory
from tests.unwind.made_stacks import STACK, MadeLane, batch_of

RBX, RBP, RSP, R10, RIP = 3, 6, 7, 10, 16
SP = STACK + 0x1000
AT_RA = RegRule(RegKind.AT_CFA, -8)


def memory(words: dict[int, int], arch: Arch = X86_64) -> LaneMemory:
    lane = MadeLane({}, words, [], SP - 0x80, 0x280, SampleKind.STOPPED)
    return LaneMemory(batch_of(arch, [lane]), 0)


def registers(arch: Arch = X86_64, exact: bool = True, **known: int) -> Registers:
    values: list[int | None] = [None] * len(arch.registers)
    for name, value in {"sp": SP, "pc": 0x401000, **known}.items():
        column = {"sp": arch.sp, "pc": arch.pc, "fp": arch.fp, "lr": arch.lr}.get(name)
        values[arch.registers.index(name) if column is None else column] = value
    return Registers(values, exact)


def step(rule: Rule, words: dict[int, int], arch: Arch = X86_64, **known: int) -> Caller | NoCaller:
    return apply(rule, registers(arch, True, **known), memory(words, arch), arch)


def apply(rule: Rule, callee: Registers, words: LaneMemory, arch: Arch = X86_64) -> Caller | NoCaller:
    return apply_rule(KnownRule(rule, Trust.EH_FRAME), callee, words, arch, 0, Budget())


def caller(rule: Rule, words: dict[int, int], arch: Arch = X86_64, **known: int) -> list[int | None]:
    outcome = step(rule, words, arch, **known)
    assert isinstance(outcome, Caller), outcome
    return outcome.registers.values


def test_cfa_becomes_sp_and_callee_saved_registers_are_kept() -> None:
    values = caller(Rule(RSP, 16, AT_RA), {SP + 8: 0x402000}, rbx=7, rbp=8, r10=9)
    assert (values[RIP], values[RSP], values[RBX], values[RBP], values[R10]) == (0x402000, SP + 16, 7, 8, None)


@pytest.mark.parametrize(
    ("how", "value"),
    [
        (SAME, 0x1111),
        (UNDEFINED, None),
        (RegRule(RegKind.AT_CFA, -16), 0x2222),
        (RegRule(RegKind.CFA_PLUS, -24), SP + 8),
        (RegRule(RegKind.REG_PLUS, 4, RBP), 0x104),
        (RegRule(RegKind.AT_REG, 8, RSP), 0x3333),
        (RegRule(RegKind.AT_EXPR, expr=b"\x31\x1c\x37\x1c\x38\x1c"), 0x2222),  # [cfa - 1 - 7 - 8]
        (RegRule(RegKind.EXPR, expr=b"\x37\x22"), SP + 32 + 7),
        (RegRule(RegKind.AT_REG, 8, R10), None),  # r10 is unknown
        (RegRule(RegKind.AT_CFA, 0x10000), None),  # outside of the copy
        (RegRule(RegKind.EXPR, expr=b"\xff"), None),
    ],
)
def test_register_follows_its_formula_and_is_unknown_where_that_fails(how: RegRule, value: int | None) -> None:
    words = {SP + 24: 0x402000, SP + 16: 0x2222, SP + 8: 0x3333}
    assert caller(Rule(RSP, 32, AT_RA, ((RBX, how),)), words, rbx=0x1111, rbp=0x100)[RBX] == value


def test_cfa_from_memory_from_an_expression_and_from_any_register() -> None:
    words = {SP + 8: SP + 64, SP + 56: 0x402000}
    assert caller(Rule(RSP, 8, AT_RA, cfa_deref=True), words)[RSP] == SP + 64
    assert caller(Rule(-1, 0, AT_RA, cfa_expr=b"\x77\xc0\x00"), words)[RSP] == SP + 64
    assert caller(Rule(R10, 0, AT_RA), words, r10=SP + 64)[RSP] == SP + 64


def test_sp_takes_its_own_rule() -> None:
    rule = Rule(RSP, 16, AT_RA, ((RSP, RegRule(RegKind.CFA_PLUS, 32)),))
    assert caller(rule, {SP + 8: 0x402000})[RSP] == SP + 48


def test_slot_below_sp_is_read_from_the_red_zone_or_was_popped() -> None:
    near, far = (Rule(RSP, 8, AT_RA, ((RBP, RegRule(RegKind.AT_CFA, n)),)) for n in (-16, -0x200))
    assert caller(near, {SP: 0x402000, SP - 8: 0x88}, rbp=0x77)[RBP] == 0x88
    assert caller(far, {SP: 0x402000}, rbp=0x77)[RBP] == 0x77


@pytest.mark.parametrize("as_expression", [False, True])
def test_slot_beyond_the_cfa_shows_that_the_frame_pointer_was_popped(as_expression: bool) -> None:
    # gcc's epilogue of a realigned frame: pop %rbp; lea -8(%r10), %rsp; the CFI still refers to rbp
    def slot(n: int) -> RegRule:
        if as_expression:
            return RegRule(RegKind.AT_EXPR, expr=bytes((0x76, n & 0x7F)))
        return RegRule(RegKind.AT_REG, n, RBP)

    rule = Rule(R10, 0, AT_RA, ((RBX, slot(-8)), (RBP, slot(0))))
    words = {SP + 24: 0x402000, SP + 64: 5, SP + 8: 6, SP: 7}
    for rbp, expected in ((SP + 64, (SP + 64, 9)), (SP + 8, (6, 7)), (3, (3, 9))):
        values = caller(rule, words, r10=SP + 32, rbp=rbp, rbx=9)
        assert (values[RBP], values[RBX]) == expected


def test_return_address_in_a_register_leaves_sp_only_in_the_innermost_frame() -> None:
    rule = Rule(RSP, 0, RegRule(RegKind.REG_PLUS, 0, R10))
    assert caller(rule, {}, r10=0x402000)[RIP] == 0x402000
    outcome = apply(rule, registers(exact=False, r10=5), memory({}))
    assert outcome == NoCaller(StackEnd.STUCK, cfa=SP)


def test_link_register_is_the_return_address_and_its_signature_is_stripped() -> None:
    rule = Rule(AARCH64.sp, 0, SAME, pac=True)
    assert caller(rule, {}, AARCH64, lr=0x00AB_0000_0040_2000)[AARCH64.pc] == 0x402000
    unknown = step(rule, {}, AARCH64)
    assert unknown == NoCaller(StackEnd.NO_RULE, needs=AARCH64.lr, cfa=SP)


def test_end_of_the_stack_is_told_apart() -> None:
    assert step(Rule(RSP, 16, UNDEFINED), {}) == NoCaller(StackEnd.ROOT)
    assert step(Rule(RSP, 16, AT_RA), {SP + 8: 0}) == NoCaller(StackEnd.ROOT, cfa=SP + 16)
    assert step(Rule(RSP, -8, AT_RA), {SP - 16: 5}) == NoCaller(StackEnd.STUCK, cfa=SP - 8)
    assert step(Rule(RSP, 0x300, AT_RA), {}) == NoCaller(StackEnd.UNREADABLE, SP + 0x2F8, cfa=SP + 0x300)
    assert step(Rule(R10, 0, AT_RA), {}) == NoCaller(StackEnd.NO_RULE, needs=R10)
    assert step(Rule(-1, 0, AT_RA, cfa_expr=b""), {}) == NoCaller(StackEnd.NO_RULE)
    assert step(Rule(RSP, 16, SAME), {}) == NoCaller(StackEnd.NO_RULE, cfa=SP + 16)


def test_signal_frame_may_lead_down_and_its_caller_is_exact() -> None:
    outcome = step(Rule(RBX, 0, AT_RA, signal=True), {SP - 24: 0x402000}, rbx=SP - 16)
    assert isinstance(outcome, Caller)
    assert outcome.registers.exact
    assert outcome.registers.values[RSP] == SP - 16


def test_withheld_register_stays_withheld_until_a_frame_restores_it() -> None:
    callee = Registers([None] * 17, True, frozenset(range(17)) - {RSP, RIP})
    callee.values[RSP], callee.values[RIP] = SP, 0x401000
    rule = Rule(RSP, 32, AT_RA, ((RBX, RegRule(RegKind.AT_CFA, -16)), (12, UNDEFINED)))
    outcome = apply(rule, callee, memory({SP + 24: 1, SP + 16: 2}))
    assert isinstance(outcome, Caller)
    assert outcome.registers.withheld == {RBP, 13, 14, 15}
