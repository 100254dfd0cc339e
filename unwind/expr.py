"""DWARF expressions as CFI uses them: a stack machine over the registers and memory of one frame.

In: the expression's bytes, a Machine (what the frame knows), values pushed first. Out: an address-sized integer, or
Failed with the reason. Never raises, always ends: the bytes come from the target's files.
Source: DWARF 5, 2.5.1 and 6.4.2 (which operations CFI may not use); libgcc unwind-dw2.c execute_stack_op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from pyprof.model.arch import Arch

MAX_OPERATIONS = 10_000
MAX_STACK = 256

Read = Callable[[int, int], int | None]
"""(avma, size in bytes) -> unsigned value, None where it is not known."""


class ExprProblem(IntEnum):
    INVALID = 0  # broken or forbidden; Failed.at is the offset in the expression
    UNREADABLE = 1  # Failed.at is the avma of the bytes that are not known
    UNKNOWN_REGISTER = 2  # Failed.at is the register's column


@dataclass(frozen=True, slots=True)
class Failed:
    problem: ExprProblem
    at: int


@dataclass(slots=True)
class Machine:
    """What an expression may look at. regs: by column of arch, None where not known. bias: avma - svma of the module.

    cfa: for DW_OP_call_frame_cfa, None while the CFA itself is computed.
    """

    arch: Arch
    regs: Sequence[int | None]
    read: Read
    bias: int = 0
    cfa: int | None = None
    mask: int = field(init=False)

    def __post_init__(self) -> None:
        self.mask = self.arch.mask


class _Stop(Exception):
    def __init__(self, problem: ExprProblem, at: int) -> None:
        self.failed = Failed(problem, at)


def evaluate(expr: bytes, machine: Machine, first: tuple[int, ...] = ()) -> int | Failed:
    """Value on top of the stack at the end. first: values on the stack at the start, the last one on top."""
    try:
        return _run(_Code(expr, machine.arch), machine, [v & machine.arch.mask for v in first])
    except _Stop as stop:
        return stop.failed


class _Code:
    """The expression's bytes and where we are; each read is checked."""

    def __init__(self, data: bytes, arch: Arch) -> None:
        self.data = data
        self.at = 0
        self.arch = arch

    def invalid(self) -> _Stop:
        return _Stop(ExprProblem.INVALID, self.at)

    def integer(self, size: int, signed: bool = False) -> int:
        end = self.at + size
        if end > len(self.data):
            raise self.invalid()
        value = int.from_bytes(
            self.data[self.at : end], "little" if self.arch.byteorder == "little" else "big", signed=signed
        )
        self.at = end
        return value

    def leb(self, signed: bool = False) -> int:
        value = shift = 0
        while True:
            byte = self.integer(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
            if shift > 140:
                raise self.invalid()
        return value - (1 << shift) if signed and byte & 0x40 else value

    def jump(self, distance: int) -> None:
        self.at += distance
        if not 0 <= self.at <= len(self.data):
            raise self.invalid()


_CONSTANTS = {0x08: 1, 0x0A: 2, 0x0C: 4, 0x0E: 8}  # DW_OP_const1u...; the next number is the signed one


def _run(code: _Code, machine: Machine, stack: list[int]) -> int:
    arch, mask = machine.arch, machine.mask

    def register(number: int) -> int:
        column = arch.dwarf.get(number)
        if column is None:
            raise code.invalid()
        value = machine.regs[column]
        if value is None:
            raise _Stop(ExprProblem.UNKNOWN_REGISTER, column)
        return value

    def pop() -> int:
        if not stack:
            raise code.invalid()
        return stack.pop()

    def pick(depth: int) -> int:
        if depth >= len(stack):
            raise code.invalid()
        return stack[-1 - depth]

    for _ in range(MAX_OPERATIONS):
        if code.at >= len(code.data):
            break
        op = code.integer(1)
        if op == 0x03:  # addr
            stack.append(code.integer(arch.word) + machine.bias & mask)
        elif op == 0x06:  # deref
            stack.append(_load(machine, pop(), arch.word))
        elif op & ~1 in _CONSTANTS and 0x08 <= op <= 0x0F:  # const1u const1s ... const8s
            stack.append(code.integer(_CONSTANTS[op & ~1], signed=bool(op & 1)) & mask)
        elif op == 0x10 or op == 0x11:  # constu consts
            stack.append(code.leb(signed=op == 0x11) & mask)
        elif op == 0x12:  # dup
            stack.append(pick(0))
        elif op == 0x13:  # drop
            pop()
        elif op == 0x14:  # over
            stack.append(pick(1))
        elif op == 0x15:  # pick
            stack.append(pick(code.integer(1)))
        elif op == 0x16:  # swap
            pick(1)
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif op == 0x17:  # rot
            pick(2)
            stack[-1], stack[-2], stack[-3] = stack[-2], stack[-3], stack[-1]
        elif op in _UNARY:
            stack.append(_UNARY[op](_signed(pop(), mask)) & mask)
        elif op == 0x23:  # plus_uconst
            stack.append(pop() + code.leb() & mask)
        elif op in _BINARY:
            right, left = pop(), pop()
            if op in (0x1B, 0x1D) and right == 0:
                raise code.invalid()
            stack.append(_BINARY[op](left, right, mask) & mask)
        elif op == 0x28:  # bra
            distance = code.integer(2, signed=True)
            if pop():
                code.jump(distance)
        elif op == 0x2F:  # skip
            code.jump(code.integer(2, signed=True))
        elif 0x30 <= op <= 0x4F:  # lit0 ... lit31
            stack.append(op - 0x30)
        elif 0x50 <= op <= 0x6F:  # reg0 ... reg31: not allowed here, libgcc takes the value
            stack.append(register(op - 0x50))
        elif 0x70 <= op <= 0x8F:  # breg0 ... breg31
            offset = code.leb(signed=True)
            stack.append(register(op - 0x70) + offset & mask)
        elif op == 0x90:  # regx
            stack.append(register(code.leb()))
        elif op == 0x92:  # bregx
            number = code.leb()
            offset = code.leb(signed=True)
            stack.append(register(number) + offset & mask)
        elif op == 0x94:  # deref_size
            size = code.integer(1)
            if not 0 < size <= arch.word:
                raise code.invalid()
            stack.append(_load(machine, pop(), size))
        elif op == 0x96:  # nop
            pass
        elif op == 0x9C and machine.cfa is not None:  # call_frame_cfa
            stack.append(machine.cfa)
        elif op == 0x9F and code.at == len(code.data):  # stack_value, a no-op at the end
            pass
        else:
            code.at -= 1
            raise code.invalid()
        if len(stack) > MAX_STACK:
            raise code.invalid()
    else:
        raise code.invalid()
    return pop()


def _load(machine: Machine, avma: int, size: int) -> int:
    value = machine.read(avma, size)
    if value is None:
        raise _Stop(ExprProblem.UNREADABLE, avma)
    return value


def _signed(value: int, mask: int) -> int:
    return value - mask - 1 if value > mask >> 1 else value


def _divide(left: int, right: int) -> int:
    """Towards zero, as C does."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _shift_right(left: int, right: int, mask: int) -> int:
    """Arithmetic; a shift by more than the word leaves the sign."""
    return _signed(left, mask) >> min(right, mask.bit_length())


_UNARY: dict[int, Callable[[int], int]] = {
    0x19: abs,
    0x1F: lambda value: -value,  # neg
    0x20: lambda value: ~value,  # not
}

_BINARY: dict[int, Callable[[int, int, int], int]] = {
    0x1A: lambda left, right, mask: left & right,
    0x1B: lambda left, right, mask: _divide(_signed(left, mask), _signed(right, mask)),
    0x1C: lambda left, right, mask: left - right,
    0x1D: lambda left, right, mask: left % right,
    0x1E: lambda left, right, mask: left * right,
    0x21: lambda left, right, mask: left | right,
    0x22: lambda left, right, mask: left + right,
    0x24: lambda left, right, mask: left << min(right, mask.bit_length()),
    0x25: lambda left, right, mask: left >> min(right, mask.bit_length()),
    0x26: _shift_right,
    0x27: lambda left, right, mask: left ^ right,
    0x29: lambda left, right, mask: int(left == right),
    0x2A: lambda left, right, mask: int(_signed(left, mask) >= _signed(right, mask)),
    0x2B: lambda left, right, mask: int(_signed(left, mask) > _signed(right, mask)),
    0x2C: lambda left, right, mask: int(_signed(left, mask) <= _signed(right, mask)),
    0x2D: lambda left, right, mask: int(_signed(left, mask) < _signed(right, mask)),
    0x2E: lambda left, right, mask: int(left != right),
}
