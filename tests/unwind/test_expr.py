"""Tests of DWARF expressions: every operation that CFI may use, the address size, and invalid expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.model.arch import ARM, S390X, X86_64, Arch
from pyprof.unwind.dwarf_expressions import (
    MAX_SAVED,
    PER_SECOND,
    PER_STACK,
    Budget,
    ExpressionFailed,
    ExprProblem,
    Machine,
    evaluate_expression,
)

MASK = (1 << 64) - 1
ADD, SUB, MUL, DIV, MOD, AND, OR, XOR, SHL, SHR, SHRA = 0x22, 0x1C, 0x1E, 0x1B, 0x1D, 0x1A, 0x21, 0x27, 0x24, 0x25, 0x26
EQ, GE, GT, LE, LT, NE = 0x29, 0x2A, 0x2B, 0x2C, 0x2D, 0x2E


def machine(arch: Arch = X86_64, memory: dict[int, int] | None = None, **registers: int) -> Machine:
    values: list[int | None] = [None] * len(arch.registers)
    for name, value in registers.items():
        values[arch.registers.index(name)] = value
    known = memory or {}
    return Machine(arch, values, lambda avma, size: known.get(avma))


def run(*code: int, arch: Arch = X86_64, first: tuple[int, ...] = (), **registers: int) -> int | ExpressionFailed:
    return evaluate_expression(bytes(code), machine(arch, None, **registers), first)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ((0x08, 0xFF), 255),
        ((0x09, 0xFF), MASK),
        ((0x0A, 0x34, 0x12), 0x1234),
        ((0x0B, 0xFE, 0xFF), MASK - 1),
        ((0x0C, 1, 0, 0, 0x80), 0x80000001),
        ((0x0D, 1, 0, 0, 0x80), MASK - 0x7FFFFFFE),
        ((0x0E, 1, 2, 3, 4, 5, 6, 7, 8), 0x0807060504030201),
        ((0x0F, *[0xFF] * 8), MASK),
        ((0x10, 0xE5, 0x8E, 0x26), 624485),
        ((0x11, 0x9B, 0xF1, 0x59), MASK + 1 - 624485),
        ((0x30,), 0),
        ((0x4F,), 31),
    ],
)
def test_constant_is_pushed_in_address_size(code: tuple[int, ...], value: int) -> None:
    assert run(*code) == value


@pytest.mark.parametrize(
    ("op", "left", "right", "value"),
    [
        (ADD, MASK, 2, 1),
        (SUB, 1, 2, MASK),
        (MUL, 1 << 63, 2, 0),
        (DIV, MASK - 6, 2, MASK - 2),  # -7 / 2 = -3, towards zero
        (MOD, MASK, 10, MASK % 10),
        (AND, 12, 10, 8),
        (OR, 12, 10, 14),
        (XOR, 12, 10, 6),
        (SHL, 1, 64, 0),
        (SHL, 3, 63, 1 << 63),
        (SHR, 1 << 63, 63, 1),
        (SHR, MASK, 200, 0),
        (SHRA, 1 << 63, 63, MASK),
        (SHRA, MASK, 200, MASK),
        (EQ, 5, 5, 1),
        (NE, 5, 5, 0),
        (GE, MASK, 0, 0),  # -1 >= 0
        (GT, 0, MASK, 1),
        (LE, MASK, 0, 1),
        (LT, 0, MASK, 0),
    ],
)
def test_operator_takes_the_second_value_as_its_left_side(op: int, left: int, right: int, value: int) -> None:
    assert run(op, first=(left, right)) == value


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ((0x12, ADD), 6),  # dup: 1 2 3 3
        ((0x13,), 2),  # drop
        ((0x14,), 2),  # over
        ((0x15, 2), 1),  # pick
        ((0x16,), 2),  # swap
        ((0x17,), 2),  # rot: 3 1 2
        ((0x17, 0x13), 1),
        ((0x17, 0x13, 0x13), 3),
        ((0x1F,), MASK - 2),  # neg
        ((0x20,), MASK - 3),  # not
        ((0x1F, 0x19), 3),  # abs
        ((0x23, 0x80, 0x01), 131),  # plus_uconst
        ((0x96,), 3),  # nop
        ((0x9F,), 3),  # stack_value
    ],
)
def test_stack_operation_works_on_the_top(code: tuple[int, ...], value: int) -> None:
    assert run(*code, first=(1, 2, 3)) == value


def test_branch_is_taken_where_the_top_is_not_zero() -> None:
    choose = (0x28, 4, 0, 0x31, 0x2F, 1, 0, 0x32)  # bra over "lit1; skip 1" to lit2
    assert run(*choose, first=(1,)) == 2
    assert run(*choose, first=(0,)) == 1


def test_plt_expression_counts_the_pushed_word_from_the_pc() -> None:
    # breg7 (rsp) 8; breg16 (rip) 0; lit15; and; lit11; ge; lit3; shl; plus: what linkers emit for .plt
    plt = (0x77, 8, 0x80, 0, 0x3F, AND, 0x3B, GE, 0x33, SHL, ADD)
    assert run(*plt, rsp=0x1000, rip=0x401006) == 0x1008
    assert run(*plt, rsp=0x1000, rip=0x40100B) == 0x1010


def test_registers_are_read_by_dwarf_number_and_an_unknown_one_is_named() -> None:
    assert run(0x76, 0x70, rbp=0x100) == 0xF0  # breg6 -16
    assert run(0x92, 13, 4, r13=0x20) == 0x24  # bregx
    assert run(0x90, 13, r13=0x20) == 0x20  # regx
    assert run(0x56, rbp=7) == 7  # reg6
    assert run(0x76, 0) == ExpressionFailed(ExprProblem.UNKNOWN_REGISTER, X86_64.fp)
    assert run(0x92, 99, 0) == ExpressionFailed(ExprProblem.INVALID, 3)


def test_memory_is_read_and_an_unreadable_address_is_named() -> None:
    there = machine(memory={0x1010: 0x55AA}, rsp=0x1000)
    assert evaluate_expression(bytes((0x77, 0x10, 0x06)), there) == 0x55AA
    assert evaluate_expression(bytes((0x77, 0x10, 0x94, 2)), there) == 0x55AA
    assert evaluate_expression(bytes((0x77, 0x18, 0x06)), there) == ExpressionFailed(ExprProblem.UNREADABLE, 0x1018)
    assert evaluate_expression(bytes((0x77, 0x10, 0x94, 9)), there) == ExpressionFailed(ExprProblem.INVALID, 4)


def test_addr_is_moved_by_the_bias_and_call_frame_cfa_needs_one() -> None:
    moved = machine()
    moved.bias = 0x7F0000000000
    assert evaluate_expression(bytes((0x03, 0x10, *[0] * 7)), moved) == 0x7F0000000010
    assert evaluate_expression(b"\x9c", moved) == ExpressionFailed(ExprProblem.INVALID, 0)
    moved.cfa = 0x1234
    assert evaluate_expression(b"\x9c", moved) == 0x1234


def test_address_size_and_byte_order_are_the_architectures() -> None:
    assert run(SUB, arch=ARM, first=(0, 1)) == 0xFFFFFFFF
    assert run(0x03, 1, 0, 0, 0, arch=ARM) == 1
    assert run(0x0A, 0x12, 0x34, arch=S390X) == 0x1234
    assert run(0x28, 0, 1, 0x31, 0x32, arch=S390X, first=(7, 1)) == 2


@pytest.mark.parametrize(
    "code",
    [
        b"",  # nothing on the stack
        b"\x22",  # too few values
        b"\x31\x16",
        b"\x31\x17",
        b"\x31\x15\x05",
        b"\x0e\x01",  # cut off
        b"\x10\x80",
        b"\x10" + b"\x80" * 40 + b"\x00",
        b"\x31\x30\x1b",  # division by zero
        b"\x31\x30\x1d",
        b"\x2f\x00\x80",  # jump before the start
        b"\x2f\x10\x00",  # jump past the end
        b"\x2f\xfd\xff",  # an endless loop
        b"\x31\x2f\xfc\xff",  # an endless loop in which the stack grows
        b"\x98\x00\x00",  # call2
        b"\xe0",
        b"\x00",
    ],
)
def test_broken_expression_is_invalid(code: bytes) -> None:
    result = evaluate_expression(code, machine(rsp=0))
    assert isinstance(result, ExpressionFailed)
    assert result.problem is ExprProblem.INVALID


@given(st.binary(max_size=40), st.lists(st.integers(0, MASK), max_size=4))
def test_any_bytes_end_with_an_address_or_a_reason(code: bytes, first: list[int]) -> None:
    filled = Machine(X86_64, list(range(17)), lambda avma, size: avma & ((1 << 8 * size) - 1))
    result = evaluate_expression(code, filled, tuple(first))
    assert isinstance(result, ExpressionFailed) or 0 <= result <= MASK


NOP = 0x96


def test_operations_are_bounded_by_stack_and_by_time() -> None:
    budget = Budget()
    frame = Machine(X86_64, [0] * 17, lambda avma, size: None, budget=budget)
    dear = bytes([0x30, *[NOP] * 6_900])
    results = [evaluate_expression(dear, frame) for _ in range(100)]
    assert results[0] == 0
    assert results[-1] == ExpressionFailed(ExprProblem.OVER_BUDGET, 0)
    assert results.count(0) == PER_STACK // len(dear)
    for _ in range(MAX_SAVED // PER_STACK + 1):
        budget.begin_stack()
        evaluate_expression(bytes([0x30, *[NOP] * 9_000]), frame)
        budget.spend(budget.left)
    budget.begin_stack()
    assert evaluate_expression(dear, frame) == ExpressionFailed(ExprProblem.OVER_BUDGET, 0)
    budget.pass_time(-(10**9))
    assert evaluate_expression(dear, frame) == ExpressionFailed(ExprProblem.OVER_BUDGET, 0)
    budget.pass_time(10**9 * len(dear) // PER_SECOND + 1)
    assert evaluate_expression(dear, frame) == 0
