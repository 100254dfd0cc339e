"""The functions of interpreters that a recording has seen: each has a number, a frame is that and a place in it."""

from __future__ import annotations

from collections.abc import Hashable, Set
from typing import Protocol

from pyprof.model.profile import Line
from pyprof.records import dataclass, field

UNKNOWN = 0
"""Number of the function that was gone before its name could be read."""

INSTRUCTION_BITS = 32
_GONE = "[function freed before its name was read]"


class Code(Hashable, Protocol):
    """A function as an interpreter knows it. Equal ones are one function, of whatever process."""

    @property
    def language(self) -> str: ...

    def line(self, instruction: int) -> Line:
        """The function's name, and the source line of an instruction; -1: it has not begun."""
        ...


@dataclass(frozen=True, slots=True)
class _Gone:
    language: str = ""

    def line(self, instruction: int) -> Line:
        return Line(_GONE, _GONE)


@dataclass
class CodeBook:
    """The functions of all processes of a recording; equal ones are one. No number is given twice."""

    codes: dict[int, Code] = field(default_factory=lambda: {UNKNOWN: _Gone()})
    _index: dict[Code, int] = field(default_factory=dict)
    _idle: set[int] = field(default_factory=set)
    _next: int = UNKNOWN + 1

    def add(self, code: Code) -> int:
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

    def keep(self, pcs: Set[int]) -> None:
        """Drop the functions that no frame had in two windows. pcs: of all frames of the window that was closed; a
        sample that was taken before is in the next one at the latest.
        """
        used = {pc >> INSTRUCTION_BITS for pc in pcs} | {UNKNOWN}
        for index in self._idle - used:
            del self._index[self.codes.pop(index)]
        self._idle = self.codes.keys() - used

    def code(self, pc: int) -> Code:
        """Of a frame. pc: of a FrameKey, frame_pc()."""
        return self.codes.get(pc >> INSTRUCTION_BITS) or self.codes[UNKNOWN]

    def line(self, pc: int) -> Line:
        """What to call a frame."""
        return self.code(pc).line(instruction_of(pc))

    def begin_at(self, number: int) -> None:
        """No number below this one is given from now on."""
        self._next = max(self._next, number)


def frame_pc(index: int, instruction: int) -> int:
    """A frame as one word. instruction: as Code.line has it, -1 if it has not begun."""
    return index << INSTRUCTION_BITS | instruction + 1


def instruction_of(pc: int) -> int:
    """What frame_pc was given."""
    return (pc & (1 << INSTRUCTION_BITS) - 1) - 1
