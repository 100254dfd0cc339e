"""The functions of interpreters that a recording has seen. An interpreter frame consists of a function's number in this
table and a place in the function.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Set
from typing import Protocol

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.profile import Line

UNKNOWN = 0
"""Number of an interpreter function that was freed, or not in memory, before its name was read."""

UNREAD = FunctionPlace(UNKNOWN)
"""Interpreter frame whose function could not be read: it has the number UNKNOWN."""

_GONE = "[function freed or swapped out before its name was read]"
_CHAINS = itertools.count(1)


def next_chain_number() -> int:
    """Return a new number for the interpreter frames of a thread (Chain.number). Equal frames of later samples keep the
    number.
    """
    return next(_CHAINS)


class NamedCode(Hashable, Protocol):
    """The protocol of an interpreted function, with its name and source lines. Two equal values are the same function,
    in all processes.
    """

    @property
    def language(self) -> str: ...

    def line(self, instruction: int) -> Line:
        """Return the function's name and the source line of an instruction; The instruction -1 means that the function
        has not begun.
        """
        ...

    def line_key(self, instruction: int) -> int:
        """Return a number for an instruction that is equal for all instructions of the same source line. For a line
        table that is too long to search it is the instruction itself.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Gone:
    language: str = ""

    def line(self, instruction: int) -> Line:
        return Line(_GONE, _GONE)

    def line_key(self, instruction: int) -> int:
        return instruction


@dataclass
class FunctionTable:
    """The interpreter functions of all processes of a recording. Equal functions share a number, and no number is
    reused.
    """

    codes: dict[int, NamedCode] = field(default_factory=lambda: {UNKNOWN: _Gone()})
    _index: dict[NamedCode, int] = field(default_factory=dict)
    _idle: set[int] = field(default_factory=set)
    _next: int = UNKNOWN + 1

    def add_code(self, code: NamedCode) -> int:
        index = self._index.get(code)
        if index is None:
            index = self._index[code] = self._next
            self.codes[index] = code
            self._next += 1
        self._idle.discard(index)
        return index

    def has_code(self, index: int) -> bool:
        """Return True if a function number still names an interpreter function, and mark the function as used.

        Callers check this before they put a cached number into a new frame.
        """
        self._idle.discard(index)
        return index in self.codes

    def has_all_codes(self, functions: Set[int]) -> bool:
        """Return True if all of these function numbers still name interpreter functions, and mark the functions as
        used.
        """
        self._idle -= functions
        return functions <= self.codes.keys()

    def drop_unused(self, functions: Set[int]) -> None:
        """Drop the interpreter functions that no frame used in the last two windows.

        A window is a part of the recording with a separate profile. A sample that was taken before a window was
        closed belongs to the next window at the latest.

        Args:
            functions: Numbers of the functions in the window that was just closed.
        """
        used = functions | {UNKNOWN}
        for index in self._idle - used:
            del self._index[self.codes.pop(index)]
        self._idle = self.codes.keys() - used

    def code(self, function: int) -> NamedCode:
        return self.codes.get(function) or self.codes[UNKNOWN]

    def line(self, place: FunctionPlace) -> Line:
        """Return the function name and source line of an interpreter frame."""
        return self.code(place.function).line(place.instruction)

    def start_numbers_at(self, number: int) -> None:
        """Set the minimum of function numbers that are given out later, so that they differ from those that another
        process gives out.
        """
        self._next = max(self._next, number)
