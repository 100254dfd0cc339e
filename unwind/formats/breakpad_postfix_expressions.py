"""Breakpad's postfix expressions: an evaluator for STACK WIN, and a compiler of STACK CFI to rules.

Values are unsigned and wrap at the width of an address. Operators: + - * / % (unsigned), a b @ (a rounded down to a
multiple of the power of two b), a ^ (the word at a), $name value = (assignment). Literals are decimal. Names begin with
$ or . or a letter. `.undef` is the unknown value. "=$x" is "= $x" as a defective tool writes it.
Source: src/processor/postfix_evaluator-inl.h of Breakpad. docs/symbol-files.md says what is missing in the
specification's own example of a program.

The common forms become simple rules, all others DWARF expressions. RuleCompiler runs an expression once with symbolic
values. A value is a register or the CFA plus a number, a number, the word at one of these, or DWARF bytes that compute
it. Both stack machines have the same operations except for division, which is signed in DWARF: _divide() builds the
unsigned one. An invalid expression raises PostfixFailed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Literal

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.unwind.dwarf_expressions import Read
from pyprof.unwind.rules import UNDEFINED, RegKind, RegRule

MAX_TOKENS = 4096
UNDEF = ".undef"
OPERATORS = frozenset("+-*/%@^=")


class PostfixProblem(IntEnum):
    """The reason why the evaluation of a Breakpad postfix expression failed."""

    MISSING_OPERAND = 0
    LEFT_OVER = 1  # values remain on the stack
    UNKNOWN_NAME = 2
    NOT_A_NAME = 3  # the target of an assignment is no variable
    NOT_A_TOKEN = 4
    DIVISION_BY_ZERO = 5
    UNREADABLE = 6
    TOO_LONG = 7


class PostfixFailed(Exception):
    """A Breakpad postfix expression is invalid or cannot be evaluated.

    Attributes:
        problem: The reason.
        token: The token that failed.
        avma: Address of the word that the sample does not hold, else 0.
    """

    def __init__(self, problem: PostfixProblem, token: str = "", avma: int = 0) -> None:
        super().__init__(f"{problem.name.lower().replace('_', ' ')}{': ' * bool(token)}{token}")
        self.problem = problem
        self.token = token
        self.avma = avma


def split_tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a Breakpad postfix expression.

    Raises:
        PostfixFailed: The text has more than MAX_TOKENS words.
    """
    words = text.split(None, MAX_TOKENS)
    if len(words) > MAX_TOKENS:
        raise PostfixFailed(PostfixProblem.TOO_LONG)
    for word in words:
        if word[0] == "=" and len(word) > 1:
            yield "="
            word = word[1:]
        yield word


def parse_literal(token: str) -> int | None:
    """Return the value of a decimal literal in a postfix expression, or None for any other token."""
    digits = token[1:] if token[0] == "-" else token
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        return None
    return int(token)


def is_name(token: str) -> bool:
    return token[0] in "$." or token[0].isalpha()


def is_variable(name: str) -> bool:
    """Return True if a Breakpad postfix program may assign a value to the name: it begins with "$". Other names are
    constants.
    """
    return name.startswith("$")


def apply_operator(operator: str, left: int, right: int, mask: int) -> int:
    """Apply one of the operators + - * / % @ of a postfix expression.

    Raises:
        PostfixFailed: The divisor is 0.
    """
    match operator:
        case "+":
            value = left + right
        case "-":
            value = left - right
        case "*":
            value = left * right
        case "@":
            value = left & ~(right - 1)
        case _:
            if right == 0:
                raise PostfixFailed(PostfixProblem.DIVISION_BY_ZERO, operator)
            value = left // right if operator == "/" else left % right
    return value & mask


def run_program(text: str, names: Mapping[str, int], read: Read, word: int) -> dict[str, int]:
    """Run a postfix program of STACK WIN and return the variables that it assigns.

    A variable to which the program assigns `.undef` is unknown from then on.

    Args:
        text: Text of the program.
        names: Values of the variables and constants that the program may read, by name.
        read: Function that reads memory.
        word: Size of an address in bytes.

    Raises:
        PostfixFailed: The program is invalid or cannot be evaluated.
    """
    return _Evaluator(names, read, word).run(text)


def evaluate_postfix(text: str, names: Mapping[str, int], read: Read, word: int) -> int:
    """Return the value of a Breakpad postfix expression. The arguments are those of run_program().

    Raises:
        PostfixFailed: The expression is invalid or cannot be evaluated.
    """
    evaluator = _Evaluator(names, read, word)
    evaluator.steps(text)
    if not evaluator.stack:
        raise PostfixFailed(PostfixProblem.MISSING_OPERAND)
    value = evaluator.value("")
    evaluator.check_empty()
    return value


class _Evaluator:
    """The state of the evaluation of a postfix expression. The stack holds numbers, and names to which a value may
    still be assigned.
    """

    def __init__(self, names: Mapping[str, int], read: Read, word: int) -> None:
        self.names: dict[str, int] = dict(names)
        self.assigned: dict[str, int] = {}
        self.stack: list[int | str] = []
        self._read = read
        self._word = word
        self._mask = (1 << 8 * word) - 1

    def run(self, text: str) -> dict[str, int]:
        self.steps(text)
        self.check_empty()
        return self.assigned

    def check_empty(self) -> None:
        if self.stack:
            raise PostfixFailed(PostfixProblem.LEFT_OVER, str(self.stack[-1]))

    def steps(self, text: str) -> None:
        for token in split_tokens(text):
            if token == "=":  # noqa: S105 - a token of the grammar
                self._assign(token)
            elif token == "^":  # noqa: S105 - a token of the grammar
                avma = self.value(token)
                value = self._read(avma, self._word)
                if value is None:
                    raise PostfixFailed(PostfixProblem.UNREADABLE, token, avma)
                self.stack.append(value)
            elif token in OPERATORS:
                right, left = self.value(token), self.value(token)
                self.stack.append(apply_operator(token, left, right, self._mask))
            elif (number := parse_literal(token)) is not None:
                self.stack.append(number & self._mask)
            elif is_name(token):
                self.stack.append(token)
            else:
                raise PostfixFailed(PostfixProblem.NOT_A_TOKEN, token)

    def value(self, operator: str) -> int:
        top = self._pop(operator)
        if isinstance(top, int):
            return top
        if top not in self.names:
            raise PostfixFailed(PostfixProblem.UNKNOWN_NAME, top)
        return self.names[top]

    def _pop(self, operator: str) -> int | str:
        if not self.stack:
            raise PostfixFailed(PostfixProblem.MISSING_OPERAND, operator)
        return self.stack.pop()

    def _assign(self, token: str) -> None:
        undefined = bool(self.stack) and self.stack[-1] == UNDEF
        value = None if undefined else self.value(token)
        if undefined:
            self.stack.pop()
        name = self._pop(token)
        if not isinstance(name, str) or not is_variable(name):
            raise PostfixFailed(PostfixProblem.NOT_A_NAME, str(name))
        if value is None:
            self.names.pop(name, None)
            self.assigned.pop(name, None)
        else:
            self.names[name] = self.assigned[name] = value


MAX_BYTES = 4096
"""Maximum size in bytes of a DWARF expression that is compiled from a postfix expression. The compiler replaces each
assigned name by its whole expression.
"""
MAX_DEPTH = 64

CFA, NUMBER = -1, -2
"""Values of _Sum.base that stand for no register: for the CFA, and for the number 0."""

Column = Callable[[str], int | None]
"""Function that maps the name of a register to its index in the architecture's registers, or to None if it has no such
register.
"""

_DEREF, _SWAP = b"\x06", b"\x16"
_BINARY = {"+": b"\x22", "-": b"\x1c", "*": b"\x1e", "%": b"\x1d"}
_ALIGN = b"\x31\x1c\x20\x1a"  # lit1 minus not and


@dataclass(frozen=True, slots=True)
class _Sum:
    """Value base + n of a postfix expression. The base is a register's column, CFA, or NUMBER for n alone."""

    base: int
    n: int


@dataclass(frozen=True, slots=True)
class _Word:
    """Value of a postfix expression: the word at an address."""

    at: _Sum


@dataclass(frozen=True, slots=True)
class _Code:
    """Value of a postfix expression that DWARF bytes compute."""

    code: bytes


_Value = _Sum | _Word | _Code


class RuleCompiler:
    """A compiler of Breakpad STACK CFI expressions to unwind rules of one architecture."""

    def __init__(self, arch: Arch, column: Column) -> None:
        self._arch = arch
        self._column = column
        self._numbers = {column: number for number, column in reversed(arch.dwarf.items())}

    def compile_register(self, expression: str, itself: int) -> RegRule:
        """Compile the postfix expression of a register to its rule.

        Args:
            expression: The postfix expression.
            itself: Column of the register, -1 for the return address.

        Raises:
            PostfixFailed: The expression is invalid.
        """
        value = self._run(expression, cfa_known=True)
        match value:
            case None:
                return UNDEFINED
            case _Sum(base=base, n=n) if base == CFA:
                return RegRule(RegKind.CFA_PLUS, n)
            case _Sum(base=base, n=n) if base >= 0:
                return RegRule(RegKind.SAME) if base == itself and not n else RegRule(RegKind.REG_PLUS, n, base)
            case _Word(at=_Sum(base=base, n=n)) if base == CFA:
                return RegRule(RegKind.AT_CFA, n)
            case _Word(at=_Sum(base=base, n=n)) if base >= 0:
                return RegRule(RegKind.AT_REG, n, base)
            case _:
                return RegRule(RegKind.EXPR, expr=self._code(value))

    def compile_cfa(self, expression: str) -> tuple[int, int, bool, bytes]:
        """Compile the postfix expression of the CFA and return the fields (cfa_reg, cfa_off, cfa_deref, cfa_expr) of a
        Rule.

        Raises:
            PostfixFailed: The expression is invalid.
        """
        value = self._run(expression, cfa_known=False)
        match value:
            case None:
                raise PostfixFailed(PostfixProblem.UNKNOWN_NAME, UNDEF)
            case _Sum(base=base, n=n) if base >= 0:
                return base, n, False, b""
            case _Word(at=_Sum(base=base, n=n)) if base >= 0:
                return base, n, True, b""
            case _:
                return -1, 0, False, self._code(value)

    def _run(self, expression: str, cfa_known: bool) -> _Value | None:
        """Return the symbolic value of a postfix expression (a sum, a memory word or DWARF bytes), or None for
        `.undef`.
        """
        stack: list[_Value | str] = []
        names: dict[str, _Value] = {".cfa": _Sum(CFA, 0)} if cfa_known else {}

        def pop(operator: str) -> _Value | str:
            if not stack:
                raise PostfixFailed(PostfixProblem.MISSING_OPERAND, operator)
            return stack.pop()

        def value(operator: str) -> _Value:
            top = pop(operator)
            return self._named(top, names) if isinstance(top, str) else top

        for token in split_tokens(expression):
            if token == "=":  # noqa: S105 - a token of the grammar
                right = value(token)
                left = pop(token)
                if not isinstance(left, str) or not is_variable(left):
                    raise PostfixFailed(PostfixProblem.NOT_A_NAME, token)
                names[left] = right
            elif token == "^":  # noqa: S105 - a token of the grammar
                address = value(token)
                stack.append(_Word(address) if isinstance(address, _Sum) else self._join(address, code=_DEREF))
            elif token in OPERATORS:
                right, left_value = value(token), value(token)
                stack.append(self._binary(token, left_value, right))
            elif (number := parse_literal(token)) is not None:
                stack.append(_Sum(NUMBER, number & self._arch.mask))
            elif is_name(token):
                stack.append(token)
            else:
                raise PostfixFailed(PostfixProblem.NOT_A_TOKEN, token)
            if len(stack) > MAX_DEPTH:
                raise PostfixFailed(PostfixProblem.TOO_LONG, token)
        if stack == [UNDEF]:
            return None
        result = value("")
        if stack:
            raise PostfixFailed(PostfixProblem.LEFT_OVER, str(stack[-1]))
        return result

    def _named(self, name: str, names: dict[str, _Value]) -> _Value:
        if name in names:
            return names[name]
        column = self._column(name)
        if column is None:
            raise PostfixFailed(PostfixProblem.UNKNOWN_NAME, name)
        return _Sum(column, 0)

    def _binary(self, operator: str, left: _Value, right: _Value) -> _Value:
        mask = self._arch.mask
        if isinstance(left, _Sum) and isinstance(right, _Sum):
            if left.base == right.base == NUMBER:
                return _Sum(NUMBER, apply_operator(operator, left.n, right.n, mask))
            if operator == "+" and NUMBER in (left.base, right.base):
                return _Sum(max(left.base, right.base), _signed(left.n + right.n, mask))
            if operator == "-" and right.base == NUMBER:
                return _Sum(left.base, _signed(left.n - right.n, mask))
        if operator == "/":
            return self._join(left, right, code=self._divide())
        return self._join(left, right, code=_ALIGN if operator == "@" else _BINARY[operator])

    def _join(self, *operands: _Value, code: bytes) -> _Code:
        joined = b"".join(self._code(operand) for operand in operands) + code
        if len(joined) > MAX_BYTES:
            raise PostfixFailed(PostfixProblem.TOO_LONG)
        return _Code(joined)

    def _code(self, value: _Value) -> bytes:
        match value:
            case _Code(code=code):
                return code
            case _Word(at=at):
                return self._code(at) + _DEREF
            case _Sum(base=base, n=n) if base == NUMBER:
                return b"\x11" + _sleb(_signed(n, self._arch.mask))
            case _Sum(base=base, n=n) if base == CFA:
                return b"\x9c" + (b"\x11" + _sleb(n) + b"\x22" if n else b"")
            case _Sum(base=base, n=n):
                return b"\x92" + _uleb(self._numbers[base]) + _sleb(n)

    def _divide(self) -> bytes:
        """Return DWARF code that replaces a and b by a / b, unsigned (Hacker's Delight, 9-3).

        If the highest bit of b is set, the quotient is 1 or 0: a >= b. Otherwise it is twice the quotient of half of a,
        plus 1 if the remainder is at least b. An unsigned comparison is a signed one after both highest bits are
        inverted.
        """
        turn = b"\x11" + _sleb(-(1 << 8 * self._arch.word - 1)) + b"\x27"  # consts, xor
        not_less = turn + _SWAP + turn + _SWAP + b"\x2a"  # a b -> a >= b
        half = b"\x14\x31\x25\x14\x1b\x31\x24"  # over lit1 shr, over div, lit1 shl: a b q
        rest = b"\x12\x15\x02\x1e\x15\x03\x16\x1c"  # dup, pick 2, mul, pick 3, swap, minus: a b q (a - q * b)
        small = half + rest + b"\x15\x02" + not_less + b"\x22\x17\x13\x13"  # pick 2, ..., plus, rot, drop, drop
        branch = b"\x12\x30\x2d"  # dup lit0 lt: is the highest bit of b set?
        large = not_less
        order: Literal["little", "big"] = "little" if self._arch.byteorder == "little" else "big"
        skip = b"\x2f" + len(large).to_bytes(2, order)
        jump = b"\x28" + (len(small) + len(skip)).to_bytes(2, order)  # bra
        return branch + jump + small + skip + large


def _signed(value: int, mask: int) -> int:
    value &= mask
    return value - mask - 1 if value > mask >> 1 else value


def _uleb(value: int) -> bytes:
    found = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        found.append(byte | 0x80 if value else byte)
        if not value:
            return bytes(found)


def _sleb(value: int) -> bytes:
    found = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        done = value == -(byte >> 6)
        found.append(byte if done else byte | 0x80)
        if done:
            return bytes(found)
