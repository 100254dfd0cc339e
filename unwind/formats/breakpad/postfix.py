"""Breakpad's postfix expressions: tokens, and an evaluator for the programs of STACK WIN.

Values are unsigned and wrap at the width of an address. Operators: + - * / % (unsigned), a b @ (a rounded down to a
multiple of the power of two b), a ^ (the word at a), $name value = (assignment). Literals are decimal. Names begin with
$ or . or a letter. `.undef` is the unknown value. "=$x" is "= $x" as a defective tool writes it.
Source: src/processor/postfix_evaluator-inl.h of Breakpad. docs/symbol-files.md says what is missing in the
specification's own example of a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

from pyprof.unwind.dwarf_expressions import Read

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
    """Return True if a postfix program may assign to the name. Names without $ are constants."""
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
        names: Variables and constants that it may read.
        read: Reads memory.
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
            if token == "=":
                self._assign(token)
            elif token == "^":
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
