"""The functions of interpreters that a recording has seen: each has a number, a frame is that and a place in it."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Set
from typing import Protocol

from pyprof.model.interpreter import FunctionPlace
from pyprof.model.profile import Line
from pyprof.records import dataclass, field

UNKNOWN = 0
"""Number of the function that was gone, or not in memory, before its name could be read."""

UNREAD = FunctionPlace(UNKNOWN)
"""A frame of it."""

_GONE = "[function freed or swapped out before its name was read]"
_CHAINS = itertools.count(1)


def number_of_chain() -> int:
    """For a chain of frames that may come again: see model.interpreter.Chain."""
    return next(_CHAINS)


class NamedCode(Hashable, Protocol):
    """A function as an interpreter knows it. Equal ones are one function, of whatever process."""

    @property
    def language(self) -> str: ...

    def line(self, instruction: int) -> Line:
        """The function's name, and the source line of an instruction; -1: it has not begun."""
        ...

    def settled(self, instruction: int) -> int:
        """The same for all instructions of a source line, as far as that is quickly found."""
        ...


@dataclass(frozen=True, slots=True)
class _Gone:
    language: str = ""

    def line(self, instruction: int) -> Line:
        return Line(_GONE, _GONE)

    def settled(self, instruction: int) -> int:
        return instruction


@dataclass
class CodeBook:
    """The functions of all processes of a recording; equal ones are one. No number is given twice."""

    codes: dict[int, NamedCode] = field(default_factory=lambda: {UNKNOWN: _Gone()})
    _index: dict[NamedCode, int] = field(default_factory=dict)
    _idle: set[int] = field(default_factory=set)
    _next: int = UNKNOWN + 1

    def add(self, code: NamedCode) -> int:
        index = self._index.get(code)
        if index is None:
            index = self._index[code] = self._next
            self.codes[index] = code
            self._next += 1
        self._idle.discard(index)
        return index

    def has(self, index: int) -> bool:
        """Asked before a frame is given this number again: from then on it is in use."""
        self._idle.discard(index)
        return index in self.codes

    def has_all(self, functions: Set[int]) -> bool:
        """The same of several."""
        self._idle -= functions
        return functions <= self.codes.keys()

    def keep(self, functions: Set[int]) -> None:
        """Drop the functions that no frame had in two windows. functions: numbers of those in the window that was
        closed; a sample that was taken before is in the next one at the latest.
        """
        used = functions | {UNKNOWN}
        for index in self._idle - used:
            del self._index[self.codes.pop(index)]
        self._idle = self.codes.keys() - used

    def code(self, function: int) -> NamedCode:
        return self.codes.get(function) or self.codes[UNKNOWN]

    def line(self, place: FunctionPlace) -> Line:
        """What to call a frame."""
        return self.code(place.function).line(place.instruction)

    def begin_at(self, number: int) -> None:
        """No number below this one is given from now on."""
        self._next = max(self._next, number)
