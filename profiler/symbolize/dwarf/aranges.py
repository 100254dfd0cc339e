"""Which unit has the code at an address, as .debug_aranges says. DWARF 5, 6.1.2.

Sets are read in one pass: their headers one by one, all ranges at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.symbolize.dwarf.cursor import Data

MAX_RANGES = 1 << 20
MAX_OVERLAP = 16
"""So many ranges that begin below an address are asked, at most."""


class Aranges(NamedTuple):
    """(n,) start, end: svmas, end excluded; unit: offset in .debug_info. Sorted by start."""

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    unit: npt.NDArray[np.uint64]

    def find(self, svma: int) -> int | None:
        """The unit of the nearest range below that holds svma."""
        at = int(np.searchsorted(self.start, svma & (1 << 64) - 1, "right"))
        low = max(0, at - MAX_OVERLAP)
        for place in range(at - 1, low - 1, -1):
            if svma < int(self.end[place]):
                return int(self.unit[place])
        return None


class _Set(NamedTuple):
    """ranges: where they begin; pairs: so many fit in. size: of an address."""

    unit: int
    size: int
    ranges: int
    pairs: int


def read_aranges(data: Data) -> Aranges:
    """What stands before the first broken set."""
    sets: list[_Set] = []
    with suppress(FormatError):
        left = MAX_RANGES
        for each in _sets(data):
            left -= each.pairs
            if left < 0:
                break
            sets.append(each)
    parts = [_of_size(data, size, [each for each in sets if each.size == size]) for size in (4, 8)]
    start, end, unit = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return Aranges(start[order], end[order], unit[order])


def _of_size(data: Data, size: int, sets: list[_Set]) -> Aranges:
    """Of sets with addresses of so many bytes; not sorted. A pair of zeros ends a set."""
    ranges = np.array([each.ranges for each in sets], np.int64)
    count = np.array([each.pairs for each in sets], np.int64)
    unit = np.array([each.unit for each in sets], np.uint64)
    which = np.repeat(np.arange(len(sets)), count)
    first = np.cumsum(count) - count
    at = ranges[which] + 2 * size * (np.arange(len(which)) - first[which])
    content = np.frombuffer(data.bytes, np.uint8)
    kind = np.dtype(f"u{size}").newbyteorder("<" if data.byteorder == "little" else ">")
    pairs = content[at[:, None] + np.arange(2 * size)].view(kind).astype(np.uint64).reshape(-1, 2)
    start, length = pairs[:, 0], pairs[:, 1]
    ends = np.concatenate(([0], np.cumsum((start == 0) & (length == 0))))
    kept = (ends[1:] == ends[first[which]]) & (length != 0)
    return Aranges(start[kept], start[kept] + length[kept], unit[which[kept]])


def _sets(data: Data) -> Iterator[_Set]:
    """Raises FormatError."""
    head = struct.Struct(("<" if data.byteorder == "little" else ">") + "IHIB")
    content, whole = data.bytes, len(data)
    at = 0
    while at < whole:
        begin = at
        if begin + head.size > whole:
            raise FormatError(data.name, begin, "cut off")
        length, _, unit, size = head.unpack_from(content, begin)
        at = begin + head.size
        stop = begin + 4 + length
        if length >= 0xFFFFFFF0:
            length, offset_size, body = data.unit_length(begin)
            unit, at = data.fixed(body + 2, offset_size)
            size, at = data.fixed(at, 1)
            stop = body + length
        if size not in (4, 8):
            raise FormatError(data.name, begin, f"addresses of {size} bytes")
        ranges = begin + -(-(at + 1 - begin) // (2 * size)) * 2 * size
        at = min(stop, whole)
        yield _Set(unit, size, ranges, max(at - ranges, 0) // (2 * size))
