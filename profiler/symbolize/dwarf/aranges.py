"""Which unit has the code at an address, as .debug_aranges says. DWARF 5, 6.1.2.

Sets are read in one pass: their headers one by one, all ranges at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
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
    """ranges: where they begin; stop: behind the set. size: of an address."""

    unit: int
    size: int
    ranges: int
    stop: int


def read_aranges(data: Data) -> Aranges:
    """What stands before the first broken set."""
    starts, lengths, units = [], [], []
    left = MAX_RANGES
    try:
        for each in _sets(data):
            pairs = _pairs(data, each)
            left -= len(pairs)
            if left < 0:
                break
            starts.append(pairs[:, 0])
            lengths.append(pairs[:, 1])
            units.append(each.unit)
    except FormatError:
        pass
    if not starts:
        nothing = np.zeros(0, np.uint64)
        return Aranges(nothing, nothing, nothing)
    start, length = np.concatenate(starts), np.concatenate(lengths)
    unit = np.repeat(np.array(units, np.uint64), [len(each) for each in starts])
    kept = np.flatnonzero(length)
    kept = kept[np.argsort(start[kept], kind="stable")]
    return Aranges(start[kept], start[kept] + length[kept], unit[kept])


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
        yield _Set(unit, size, ranges, at)


def _pairs(data: Data, each: _Set) -> npt.NDArray[np.uint64]:
    """(n, 2) start and length, up to the pair of zeros that ends the set."""
    count = max(each.stop - each.ranges, 0) // (2 * each.size)
    kind = np.dtype(np.uint64 if each.size == 8 else np.uint32).newbyteorder(data.byteorder)
    pairs = np.frombuffer(data.bytes, kind, 2 * count, each.ranges if count else 0).reshape(count, 2)
    ends = np.flatnonzero(~pairs.any(axis=1))
    return (pairs[: ends[0]] if len(ends) else pairs).astype(np.uint64)
