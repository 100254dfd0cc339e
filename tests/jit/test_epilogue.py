"""Tests of unwinding by the instructions up to the return, compared with an emulated processor."""

from __future__ import annotations

import struct

import pytest
import unicorn as uc
from hypothesis import given, settings
from hypothesis import strategies as st
from unicorn import x86_const as x86

from pyprof.model.arch import AARCH64, X86_64
from pyprof.unwind.heuristics.rules_and_checks_from_code import epilogue_rule
from pyprof.unwind.rules import RegKind, Rule

pytestmark = [pytest.mark.live, pytest.mark.system]

CODE, CALLEE, STACK, SP, FP, CALLER = 0x10000, 0x20000, 0x40000, 0x48000, 0x4A000, 0x30000

REGISTERS = {
    column: getattr(x86, f"UC_X86_REG_{X86_64.registers[column].upper()}") for column in sorted(X86_64.callee_saved)
}
HARMLESS = ("f30f1efa", "c5f877", "90", "6690", "0f1f4000", "31c0", "4889f8", "4531c9", "ffd0", "41ffd3")
PUSH_POP = ("53", "55", "4154", "4157", "5b", "5d", "415c", "415f", "50", "58")
instructions = st.one_of(
    st.sampled_from(HARMLESS + PUSH_POP),
    st.integers(-8, 8).map(lambda n: f"4883c4{8 * n & 0xFF:02x}"),
    st.integers(-8, 8).map(lambda n: f"4883ec{8 * n & 0xFF:02x}"),
    st.integers(-200, 200).map(lambda n: "4881c4" + struct.pack("<i", 8 * n).hex()),
    st.integers(-9, 9).map(lambda n: f"488d6424{8 * n & 0xFF:02x}"),
    st.sampled_from(("c9", "4889ec", "4889e5", "4889c3", "0f05", "e800000000", "c21000")),
)


def emulated(code: bytes) -> tuple[int, dict[int, int]] | None:
    """Return sp and the callee-saved registers after the return, or None if the code fails."""
    machine = uc.Uc(uc.UC_ARCH_X86, uc.UC_MODE_64)
    for start in (CODE, CALLEE, CALLER, STACK):
        machine.mem_map(start, 0x10000)
    machine.mem_write(CODE, code)
    machine.mem_write(CALLEE, b"\xc3")
    machine.mem_write(STACK, b"".join(struct.pack("<Q", STACK + at) for at in range(0, 0x10000, 8)))
    for register in (x86.UC_X86_REG_RAX, x86.UC_X86_REG_R11):
        machine.reg_write(register, CALLEE)
    machine.reg_write(x86.UC_X86_REG_RDI, CALLEE)
    for place, register in enumerate(REGISTERS.values()):
        machine.reg_write(register, 0x1000 + place)
    machine.reg_write(x86.UC_X86_REG_RBP, FP)
    machine.reg_write(x86.UC_X86_REG_RSP, SP)
    last = CODE + code.rindex(b"\xc3")
    try:
        machine.emu_start(CODE, last, count=200)
    except uc.UcError:
        return None
    if machine.reg_read(x86.UC_X86_REG_RIP) != last:
        return None
    sp = machine.reg_read(x86.UC_X86_REG_RSP)
    return sp + 8, {column: machine.reg_read(register) for column, register in REGISTERS.items()}


def predicted(rule: Rule) -> tuple[int, dict[int, int]]:
    cfa = (SP if rule.cfa_reg == X86_64.sp else FP) + rule.cfa_off
    registers = {column: 0x1000 + place for place, column in enumerate(REGISTERS)}
    registers[X86_64.fp] = FP
    for column, how in rule.regs:
        assert how.kind is RegKind.AT_CFA
        if column in registers:
            registers[column] = cfa + how.n  # each word of the stack contains its own address
    return cfa, registers


@settings(max_examples=400, deadline=None)
@given(st.lists(instructions, max_size=8))
def test_rule_says_what_the_processor_does(words: list[str]) -> None:
    code = bytes.fromhex("".join(words)) + b"\xc3"
    rule = epilogue_rule(X86_64, code)
    if rule is None:
        return
    done = emulated(code)
    assert done is not None
    assert predicted(rule) == done


@pytest.mark.parametrize(
    ("code", "cfa"),
    [("4883ec08ffd14883c408c3", 8), ("ffd14883c408c3", 16), ("4883c408c3", 16), ("5b415cc3", 24), ("c3", 8)],
)
def test_trampolines_are_understood_from_each_instruction(code: str, cfa: int) -> None:
    rule = epilogue_rule(X86_64, bytes.fromhex(code))
    assert rule is not None
    assert (rule.cfa_reg, rule.cfa_off) == (X86_64.sp, cfa)


@pytest.mark.parametrize("code", ["", "5b", "7500c3", "4883c4", "ff20c3", "4889e5c3", "c21000", "5dc9c3"])
def test_code_that_may_do_more_is_not_guessed_at(code: str) -> None:
    assert epilogue_rule(X86_64, bytes.fromhex(code)) is None
    assert epilogue_rule(AARCH64, bytes.fromhex(code)) is None
