"""Evaluation of the DWARF expressions in CFI: a stack machine over one frame's registers and memory.

evaluate_expression() takes the expression's bytes, a Machine (the frame's registers and memory) and initial stack
values. It returns an address-sized integer, or an ExpressionFailed with the reason. It never raises and always ends,
because the bytes come from files of the target.
Sources: DWARF 5, sections 2.5.1 and 6.4.2 (which operations CFI may not use); execute_stack_op in libgcc's
unwind-dw2.c.

The encode_* functions write expressions, for rows of other formats that no field of a rule can express.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Literal

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.arch import Arch

MAX_OPERATIONS = 10_000
"""Maximum number of operations that one evaluation of a DWARF expression executes. Compilers and assemblers emit fewer
than 50.
"""
MAX_STACK = 256
PER_STACK = 1 << 16
PER_FRAME = 64
PER_SECOND = 1 << 21
MAX_SAVED = 1 << 24
"""Limits on operations of DWARF expressions: MAX_STACK entries on the stack of the machine, PER_STACK operations for
one call stack and PER_FRAME more for each of its frames, PER_SECOND for all call stacks in one second of recording.
MAX_SAVED is the maximum number of unused operations that are carried over to later seconds.
"""

Read = Callable[[int, int], int | None]
"""Function that reads memory: (address, size in bytes) -> unsigned value, or None if the sample does not hold it."""


DEREF, CONSTS, PLUS, SHL, LIT0, BREG0, BREGX = 0x06, 0x11, 0x22, 0x24, 0x30, 0x70, 0x92
"""DWARF opcodes (DW_OP_*) of the operations that the encode_* functions write."""


class ExprProblem(IntEnum):
    """The reason why the evaluation of a DWARF expression failed. It determines the meaning of ExpressionFailed.at."""

    INVALID = 0  # broken or forbidden; `at` is the offset in the expression
    UNREADABLE = 1  # `at` is the address that the sample does not hold
    UNKNOWN_REGISTER = 2  # `at` is the register's column
    OVER_BUDGET = 3  # the budget of the call stack, or of this second of recording, is used up


@dataclass(frozen=True, slots=True)
class ExpressionFailed:
    """The result of a DWARF expression whose evaluation failed: the reason and its place."""

    problem: ExprProblem
    at: int


@dataclass(slots=True)
class Budget:
    """The number of operations that DWARF expressions may still run. It bounds the cost of a hostile or broken unwind
    table.

    Attributes:
        stack: Number of operations left for the current call stack.
        saved: Number of operations left for this second of the recording, with those carried over from earlier seconds.
        refused: Number of evaluations that exceeded the budget.
        at: Lookup pc of a frame whose rule exceeded the budget, 0 if there is none.
    """

    stack: int = PER_STACK
    saved: int = MAX_SAVED
    refused: int = 0
    at: int = 0

    def begin_stack(self) -> None:
        self.stack = PER_STACK

    def pass_time(self, ns: int) -> None:
        self.saved = min(self.saved + max(ns, 0) * PER_SECOND // 10**9, MAX_SAVED)

    @property
    def left(self) -> int:
        return min(self.stack, self.saved)

    def spend(self, operations: int) -> None:
        self.stack -= operations
        self.saved -= operations


@dataclass(slots=True)
class Machine:
    """The registers and memory that a DWARF expression may read.

    Attributes:
        arch: The architecture.
        regs: Register values in the order of the architecture's registers, None where unknown.
        read: Reads the memory of the sample.
        bias: Address in the process minus address in the file, for the module of the expression.
        cfa: Value of DW_OP_call_frame_cfa, None while the CFA itself is computed.
        budget: The operations that DWARF expressions may still execute.
        mask: Bit mask of the width of an address.
    """

    arch: Arch
    regs: Sequence[int | None]
    read: Read
    bias: int = 0
    cfa: int | None = None
    budget: Budget = field(default_factory=Budget)
    mask: int = field(init=False)

    def __post_init__(self) -> None:
        self.mask = self.arch.mask


class _Stop(Exception):
    def __init__(self, problem: ExprProblem, at: int) -> None:
        self.failed = ExpressionFailed(problem, at)


class _Code:
    """The bytes of a DWARF expression and the current offset. Each read is checked against the end of the bytes."""

    def __init__(self, data: bytes, arch: Arch) -> None:
        self.data = data
        self.at = 0
        self.arch = arch
        self.order: Literal["little", "big"] = "little" if arch.byteorder == "little" else "big"

    def invalid(self) -> _Stop:
        return _Stop(ExprProblem.INVALID, self.at)

    def invalid_operation(self) -> _Stop:
        """Return the error for the DWARF operation whose opcode was just read."""
        self.at -= 1
        return self.invalid()

    def integer(self, size: int, signed: bool = False) -> int:
        end = self.at + size
        if end > len(self.data):
            raise self.invalid()
        value = int.from_bytes(self.data[self.at : end], self.order, signed=signed)
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

    @property
    def ended(self) -> bool:
        return self.at >= len(self.data)


class _Run:
    """One evaluation of a DWARF expression: the code, the machine and the operand stack. Each DWARF operation is a
    function that takes this object.
    """

    def __init__(self, code: _Code, machine: Machine, stack: list[int]) -> None:
        self.code = code
        self.machine = machine
        self.arch = machine.arch
        self.mask = machine.mask
        self.stack = stack

    def result(self) -> int:
        """Run the DWARF expression and return the top of the operand stack.

        Raises:
            _Stop: The evaluation failed.
        """
        code, stack, budget = self.code, self.stack, self.machine.budget
        left = budget.left
        count = 0
        try:
            while not code.ended:
                if count >= left:
                    budget.refused += 1
                    raise _Stop(ExprProblem.OVER_BUDGET, 0)
                count += 1
                begin = code.at
                operation = _OPERATIONS.get(code.integer(1))
                if operation is None:
                    code.at = begin
                    raise code.invalid()
                operation(self)
                if len(stack) > MAX_STACK or count > MAX_OPERATIONS:
                    raise code.invalid()
            return self.pop()
        finally:
            budget.spend(count)

    def push(self, value: int) -> None:
        self.stack.append(value & self.mask)

    def pop(self) -> int:
        if not self.stack:
            raise self.code.invalid()
        return self.stack.pop()

    def peek(self, depth: int) -> int:
        if depth >= len(self.stack):
            raise self.code.invalid()
        return self.stack[-1 - depth]

    def register(self, number: int) -> int:
        column = self.arch.dwarf.get(number)
        if column is None:
            raise self.code.invalid()
        value = self.machine.regs[column]
        if value is None:
            raise _Stop(ExprProblem.UNKNOWN_REGISTER, column)
        return value

    def load(self, size: int) -> None:
        avma = self.pop()
        value = self.machine.read(avma, size)
        if value is None:
            raise _Stop(ExprProblem.UNREADABLE, avma)
        self.push(value)

    def load_some(self) -> None:
        size = self.code.integer(1)
        if not 0 < size <= self.arch.word:
            raise self.code.invalid()
        self.load(size)

    def swap(self) -> None:
        self.peek(1)
        self.stack[-1], self.stack[-2] = self.stack[-2], self.stack[-1]

    def rotate(self) -> None:
        self.peek(2)
        stack = self.stack
        stack[-1], stack[-2], stack[-3] = stack[-2], stack[-3], stack[-1]

    def add_constant(self) -> None:
        self.push(self.pop() + self.code.leb())

    def branch(self) -> None:
        distance = self.code.integer(2, signed=True)
        if self.pop():
            self.code.jump(distance)

    def based(self, number: int) -> None:
        """Execute DW_OP_breg: push the sum of a register and the offset that follows the opcode."""
        offset = self.code.leb(signed=True)
        self.push(self.register(number) + offset)

    def cfa(self) -> None:
        if self.machine.cfa is None:
            raise self.code.invalid_operation()
        self.push(self.machine.cfa)

    def stack_value(self) -> None:
        """Execute DW_OP_stack_value: fail unless it is the last operation of the expression, where it has no effect."""
        if not self.code.ended:
            raise self.code.invalid_operation()


_Operation = Callable[[_Run], object]


def _constant(size: int, signed: bool) -> _Operation:
    return lambda run: run.push(run.code.integer(size, signed))


def _leb(signed: bool) -> _Operation:
    return lambda run: run.push(run.code.leb(signed))


def _literal(value: int) -> _Operation:
    return lambda run: run.push(value)


def _register(number: int) -> _Operation:
    """Return the operation DW_OP_reg for a register. CFI expressions may not use it; it pushes the register's value, as
    in libgcc.
    """
    return lambda run: run.push(run.register(number))


def _based(number: int) -> _Operation:
    return lambda run: run.based(number)


def _unary(function: Callable[[int], int]) -> _Operation:
    """Return a DWARF operation that replaces the top of the stack by a function of its signed value."""
    return lambda run: run.push(function(_signed(run.pop(), run.mask)))


def _binary(function: Callable[[int, int, int], int]) -> _Operation:
    """Return a DWARF operation that replaces the two top entries by function(second entry, top entry, mask of a
    word).
    """

    def operation(run: _Run) -> None:
        right, left = run.pop(), run.pop()
        run.push(function(left, right, run.mask))

    return operation


def _by_divisor(function: Callable[[int, int, int], int]) -> _Operation:
    """Return a DWARF operation like that of _binary(), which fails if the top entry is 0."""
    operation = _binary(function)

    def checked(run: _Run) -> None:
        if len(run.stack) > 1 and not run.stack[-1]:
            raise run.code.invalid()
        operation(run)

    return checked


def _signed(value: int, mask: int) -> int:
    return value - mask - 1 if value > mask >> 1 else value


def _divide(left: int, right: int) -> int:
    """Divide and round towards zero, as C does."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _shift_right(left: int, right: int, mask: int) -> int:
    """Shift a DWARF stack entry right arithmetically. A shift by more than the word's width leaves only the sign."""
    return _signed(left, mask) >> min(right, mask.bit_length())


_OPERATIONS: dict[int, _Operation] = {
    0x03: lambda run: run.push(run.code.integer(run.arch.word) + run.machine.bias),  # addr
    0x06: lambda run: run.load(run.arch.word),  # deref
    **{
        0x08 + 2 * at + signed: _constant(1 << at, bool(signed)) for at in range(4) for signed in range(2)
    },  # const1u ...
    0x10: _leb(signed=False),  # constu
    0x11: _leb(signed=True),  # consts
    0x12: lambda run: run.push(run.peek(0)),  # dup
    0x13: lambda run: run.pop(),  # drop
    0x14: lambda run: run.push(run.peek(1)),  # over
    0x15: lambda run: run.push(run.peek(run.code.integer(1))),  # pick
    0x16: _Run.swap,
    0x17: _Run.rotate,
    0x19: _unary(abs),
    0x1A: _binary(lambda left, right, mask: left & right),
    0x1B: _by_divisor(lambda left, right, mask: _divide(_signed(left, mask), _signed(right, mask))),
    0x1C: _binary(lambda left, right, mask: left - right),
    0x1D: _by_divisor(lambda left, right, mask: left % right),
    0x1E: _binary(lambda left, right, mask: left * right),
    0x1F: _unary(lambda value: -value),  # neg
    0x20: _unary(lambda value: ~value),  # not
    0x21: _binary(lambda left, right, mask: left | right),
    0x22: _binary(lambda left, right, mask: left + right),
    0x23: _Run.add_constant,  # plus_uconst
    0x24: _binary(lambda left, right, mask: left << min(right, mask.bit_length())),
    0x25: _binary(lambda left, right, mask: left >> min(right, mask.bit_length())),
    0x26: _binary(_shift_right),
    0x27: _binary(lambda left, right, mask: left ^ right),
    0x28: _Run.branch,  # bra
    0x29: _binary(lambda left, right, mask: int(left == right)),
    0x2A: _binary(lambda left, right, mask: int(_signed(left, mask) >= _signed(right, mask))),
    0x2B: _binary(lambda left, right, mask: int(_signed(left, mask) > _signed(right, mask))),
    0x2C: _binary(lambda left, right, mask: int(_signed(left, mask) <= _signed(right, mask))),
    0x2D: _binary(lambda left, right, mask: int(_signed(left, mask) < _signed(right, mask))),
    0x2E: _binary(lambda left, right, mask: int(left != right)),
    0x2F: lambda run: run.code.jump(run.code.integer(2, signed=True)),  # skip
    **{0x30 + value: _literal(value) for value in range(32)},
    **{0x50 + number: _register(number) for number in range(32)},
    **{0x70 + number: _based(number) for number in range(32)},
    0x90: lambda run: run.push(run.register(run.code.leb())),  # regx
    0x92: lambda run: run.based(run.code.leb()),  # bregx
    0x94: _Run.load_some,  # deref_size
    0x96: lambda run: None,  # nop
    0x9C: _Run.cfa,  # call_frame_cfa
    0x9F: _Run.stack_value,
}
"""Functions that execute DWARF operations, by opcode. CFI may not use any other opcode."""


def evaluate_expression(expr: bytes, machine: Machine, first: tuple[int, ...] = ()) -> int | ExpressionFailed:
    """Evaluate a DWARF expression and return the top of its stack, or the reason of a failure.

    Args:
        expr: Bytes of the expression.
        machine: Registers and memory of the frame.
        first: Initial values on the stack; the last one is on top.
    """
    try:
        return _Run(_Code(expr, machine.arch), machine, [v & machine.arch.mask for v in first]).result()
    except _Stop as stop:
        return stop.failed


def encode_register_plus(number: int, offset: int) -> bytes:
    """Return the DWARF expression register + offset. The register is a DWARF number."""
    if number < 32:
        return bytes([BREG0 + number]) + encode_sleb128(offset)
    return bytes([BREGX]) + encode_uleb128(number) + encode_sleb128(offset)


def encode_deref(expression: bytes) -> bytes:
    """Return the DWARF expression of the word at an address, which is given as an expression."""
    return expression + bytes([DEREF])


def encode_plus(expression: bytes, offset: int) -> bytes:
    """Return a DWARF expression that adds an offset to the result of another."""
    return expression + bytes([CONSTS]) + encode_sleb128(offset) + bytes([PLUS]) if offset else expression


def encode_plus_register(expression: bytes, number: int, scale: int) -> bytes:
    """Return a DWARF expression that adds register << scale to another one. The register is a DWARF number."""
    return expression + encode_register_plus(number, 0) + bytes([LIT0 + scale, SHL, PLUS])


def encode_uleb128(value: int) -> bytes:
    """Encode an unsigned LEB128 number."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_sleb128(value: int) -> bytes:
    """Encode a signed LEB128 number."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)
