"""V8's tables of source positions, and its positions of inlined functions (source-position-table.cc)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from pyprof.records import dataclass

MAX_ENTRIES = 1 << 17
MAX_DEPTH = 64
"""Maximum number of functions that are inlined into each other."""


def read_numbers(data: bytes) -> Iterator[int]:
    """Yield the numbers of a table, each of seven bits a byte, the lowest first. A number that is cut off is left
    out.
    """
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift = min(shift + 7, 63)
            continue
        yield value
        value = shift = 0


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


@dataclass(frozen=True, slots=True)
class JsPosition:
    """A place in a script.

    Attributes:
        offset: Position in the script, -1 if it is unknown.
        inlining: Number of the inlined function, -1 for the function itself.
    """

    offset: int
    inlining: int


def unpack_position(word: int) -> JsPosition:
    """Return the position that V8 packs into a word: whether it is external, the position plus 1, the number of the
    inlined function plus 1.
    """
    offset = -1 if word & 1 else (word >> 1 & (1 << 30) - 1) - 1
    return JsPosition(offset, (word >> 31 & 0xFFFF) - 1)


class JsPositionTable:
    """The source positions of some code, by offset in the code."""

    def __init__(self, data: bytes) -> None:
        """Decode a table: pairs of differences to the row before. The sign of the first has another meaning."""
        self._offsets: list[int] = []
        self._positions: list[int] = []
        offset, position = -1, 0
        numbers = read_numbers(data)
        for coded in numbers:
            difference = next(numbers, None)
            if difference is None or len(self._offsets) >= MAX_ENTRIES:
                break
            step = _signed(coded)
            offset += step if step >= 0 else -(step + 1)
            position += _signed(difference)
            self._offsets.append(offset)
            self._positions.append(position)

    def __len__(self) -> int:
        return len(self._offsets)

    def find(self, offset: int) -> JsPosition | None:
        """Return the source position of the code at an offset, or None."""
        at = bisect_right(self._offsets, offset) - 1
        return unpack_position(self._positions[at] & (1 << 64) - 1) if at >= 0 else None
