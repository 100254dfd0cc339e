"""Tests of postfix expressions: one table for the evaluator and for the compiler of STACK CFI."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.model.arch import I386, X86_64, Arch
from pyprof.unwind.dwarf_expressions import ExpressionFailed, Machine
from pyprof.unwind.dwarf_expressions import evaluate_expression as evaluate_dwarf
from pyprof.unwind.formats.breakpad_postfix_expressions import (
    PostfixFailed,
    PostfixProblem,
    RuleCompiler,
    evaluate_postfix,
    run_program,
)
from pyprof.unwind.formats.breakpad_stack_cfi import RegisterNames
from pyprof.unwind.rules import RegKind, RegRule

CFA = 0x7000
MEMORY = {0x7000: 0x1111, 0x6FF8: 0x2222, 0x5010: 0x6FF8}
TOP = {4: 0xFFFF_FFFF, 8: 0xFFFF_FFFF_FFFF_FFFF}

VALUES: dict[str, int | str] = {
    "5": 5,
    "-5": -5,
    "$bx 8 +": 0x5018,
    "$bx 8 -": 0x5008,
    "3 $bx +": 0x5013,
    "$bx $cx +": 0x500A,
    "$bx $cx -": 0x5016,
    "$cx $bx *": 0x5010 * -6,
    "7 3 *": 21,
    "22 5 /": 4,
    "22 5 %": 2,
    "$bx 7 /": 0x5010 // 7,
    "$bx 7 %": 0x5010 % 7,
    "$bx 16 @": 0x5010,
    "$bx 4096 @": 0x5000,
    "$bx 3 + 4 @": 0x5010,
    ".cfa": CFA,
    ".cfa 8 -": CFA - 8,
    ".cfa ^": 0x1111,
    ".cfa -8 + ^": 0x2222,
    ".cfa 8 - ^": 0x2222,
    "$bx ^": 0x6FF8,
    "$bx ^ ^": 0x2222,
    "$bx ^ 8 + ^": 0x1111,
    "$T0 $bx 8 + = $T0 8 -": 0x5010,
    "$T0 $bx =$T0 ^ 8 +": 0x7000,
    "$T0 .cfa = $T1 $T0 8 - = $T1 ^": 0x2222,
    "0 1 -": -1,
    "0 1 - 2 +": 1,
    "-1 2 /": "top / 2",
    "-1 -1 /": 1,
    "5 -1 /": 0,
    "-1 10 %": "top % 10",
    "$cx 2 /": "cx / 2",
    "$cx -3 /": "cx / -3",
    "$cx -7 /": 1,
    "$bx $cx /": 0,
    "-1 -1 *": 1,
    "  $bx   8  + ": 0x5018,
}

FAILURES = {
    "": PostfixProblem.MISSING_OPERAND,
    "+": PostfixProblem.MISSING_OPERAND,
    "1 +": PostfixProblem.MISSING_OPERAND,
    "^": PostfixProblem.MISSING_OPERAND,
    "$T0 =": PostfixProblem.UNKNOWN_NAME,
    "5 =": PostfixProblem.MISSING_OPERAND,
    "5 6 = 1": PostfixProblem.NOT_A_NAME,
    "1 2": PostfixProblem.LEFT_OVER,
    "$nope 8 +": PostfixProblem.UNKNOWN_NAME,
    "$nope": PostfixProblem.UNKNOWN_NAME,
    "$bx .undef +": PostfixProblem.UNKNOWN_NAME,
    "0x10": PostfixProblem.NOT_A_TOKEN,
    "8+": PostfixProblem.NOT_A_TOKEN,
    "1_0": PostfixProblem.NOT_A_TOKEN,
    "1 0 /": PostfixProblem.DIVISION_BY_ZERO,
    "1 0 %": PostfixProblem.DIVISION_BY_ZERO,
    "1 " * 5000: PostfixProblem.TOO_LONG,
    "$eip 4 + ^ = $esp $ebp 8 + = $ebp $ebp ^ =": PostfixProblem.UNKNOWN_NAME,  # example in the specification
}


def read(avma: int, size: int) -> int | None:
    return MEMORY.get(avma)


def registers(arch: Arch) -> dict[str, int]:
    prefix = "r" if arch is X86_64 else "e"
    return {f"${prefix}bx": 0x5010, f"${prefix}cx": -6 & arch.mask}


def spelled(text: str, arch: Arch) -> str:
    prefix = "r" if arch is X86_64 else "e"
    return text.replace("$bx", f"${prefix}bx").replace("$cx", f"${prefix}cx")


def expected(value: int | str, arch: Arch) -> int:
    if isinstance(value, int):
        return value & arch.mask
    cx, top = -6 & arch.mask, arch.mask
    return {"top / 2": top // 2, "top % 10": top % 10, "cx / 2": cx // 2, "cx / -3": cx // (-3 & top)}[value]


def by_rule(text: str, arch: Arch) -> int | ExpressionFailed | None:
    """Return the value of the compiled rule, evaluated as apply_rule does."""
    names = RegisterNames(arch)
    rule = RuleCompiler(arch, names.column).compile_register(text, -1)
    values: list[int | None] = [None] * len(arch.registers)
    for name, value in registers(arch).items():
        column = names.column(name)
        assert column is not None
        values[column] = value
    base = (values[rule.reg] or 0) if rule.reg >= 0 else CFA
    match rule.kind:
        case RegKind.CFA_PLUS | RegKind.REG_PLUS:
            return base + rule.n & arch.mask
        case RegKind.AT_CFA | RegKind.AT_REG:
            return read(base + rule.n & arch.mask, arch.word)
        case RegKind.EXPR:
            return evaluate_dwarf(rule.expr, Machine(arch, values, read, 0, CFA), (CFA,))
    raise AssertionError(rule)


@pytest.mark.parametrize("arch", [X86_64, I386], ids=lambda arch: arch.name)
@pytest.mark.parametrize("text", VALUES)
def test_evaluator_and_compiled_rule_give_the_value(text: str, arch: Arch) -> None:
    names = {**registers(arch), ".cfa": CFA}
    wanted = expected(VALUES[text], arch)
    assert evaluate_postfix(spelled(text, arch), names, read, arch.word) == wanted
    assert by_rule(spelled(text, arch), arch) == wanted


@pytest.mark.parametrize("text", FAILURES)
def test_broken_expression_fails_in_both(text: str) -> None:
    with pytest.raises(PostfixFailed) as failed:
        evaluate_postfix(spelled(text, X86_64), {**registers(X86_64), ".cfa": CFA}, read, 8)
    assert failed.value.problem == FAILURES[text]
    with pytest.raises(PostfixFailed):
        RuleCompiler(X86_64, RegisterNames(X86_64).column).compile_register(spelled(text, X86_64), -1)


def test_unreadable_word_fails_in_both() -> None:
    with pytest.raises(PostfixFailed) as failed:
        evaluate_postfix("$rbx 8 + ^", registers(X86_64), read, 8)
    assert (failed.value.problem, failed.value.avma) == (PostfixProblem.UNREADABLE, 0x5018)
    assert isinstance(by_rule("$rbx 8 + ^ 1 +", X86_64), ExpressionFailed)


def test_division_by_zero_at_run_time_fails_in_both() -> None:
    with pytest.raises(PostfixFailed, match="division by zero"):
        evaluate_postfix("5 $rbx $rbx - /", registers(X86_64), read, 8)
    assert isinstance(by_rule("5 $rbx $rbx - /", X86_64), ExpressionFailed)


WORDS = st.integers(0, 2**64 - 1) | st.integers(0, 20) | st.integers(2**63 - 5, 2**63 + 5)


@settings(max_examples=150, deadline=None)
@given(WORDS, WORDS, st.sampled_from("+-*/%@"), st.sampled_from([X86_64, I386]))
def test_operators_of_both_machines_agree_on_any_words(left: int, right: int, operator: str, arch: Arch) -> None:
    names = RegisterNames(arch)
    a, b = ("rax", "rdx") if arch is X86_64 else ("eax", "edx")
    text = f"${a} ${b} {operator}"
    rule = RuleCompiler(arch, names.column).compile_register(text, -1)
    assert rule.kind is RegKind.EXPR
    values: list[int | None] = [None] * len(arch.registers)
    values[names.column(a) or 0], values[names.column(b) or 0] = left & arch.mask, right & arch.mask
    compiled = evaluate_dwarf(rule.expr, Machine(arch, values, read, 0, CFA), (CFA,))
    try:
        value = evaluate_postfix(text, {f"${a}": left & arch.mask, f"${b}": right & arch.mask}, read, arch.word)
    except PostfixFailed:
        assert isinstance(compiled, ExpressionFailed)
    else:
        assert compiled == value


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("$rsp 8 +", RegRule(RegKind.REG_PLUS, 8, X86_64.sp)),
        ("$rbx", RegRule(RegKind.SAME)),
        ("$rax", RegRule(RegKind.REG_PLUS, 0, 0)),
        ("rax", RegRule(RegKind.REG_PLUS, 0, 0)),
        (".cfa -16 + ^", RegRule(RegKind.AT_CFA, -16)),
        (".cfa 16 - ^", RegRule(RegKind.AT_CFA, -16)),
        ("16 .cfa + 32 - ^", RegRule(RegKind.AT_CFA, -16)),
        (".cfa 16 +", RegRule(RegKind.CFA_PLUS, 16)),
        ("$rbp 8 - ^", RegRule(RegKind.AT_REG, -8, X86_64.fp)),
        (".undef", RegRule(RegKind.UNDEFINED)),
    ],
)
def test_common_forms_are_plain_rules(text: str, rule: RegRule) -> None:
    assert RuleCompiler(X86_64, RegisterNames(X86_64).column).compile_register(text, 3) == rule


def test_program_assigns_and_forgets() -> None:
    assert run_program("$T0 4 = $eip $T0 1 + = $T0 .undef =", {}, read, 4) == {"$eip": 5}
    assert run_program("$a 1 = $b $a =$c $b 2 * =", {}, read, 4) == {"$a": 1, "$b": 1, "$c": 2}
    with pytest.raises(PostfixFailed, match="left over"):
        run_program("$a 1 = 5", {}, read, 4)
    with pytest.raises(PostfixFailed, match="not a name"):
        run_program(".undef 1 =", {}, read, 4)


def test_assigned_names_cannot_grow_an_expression_without_bound() -> None:
    text = "$a $rax 3 * = " + "$a $a $a * = " * 40 + "$a"
    with pytest.raises(PostfixFailed, match="too long"):
        RuleCompiler(X86_64, RegisterNames(X86_64).column).compile_register(text, -1)
