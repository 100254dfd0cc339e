"""Lookup of the unit for an address in .debug_aranges. DWARF 5, 6.1.2.

All sets are read in one pass: the headers one by one, all ranges at once.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.symbolize.dwarf.cursor import Data

MAX_RANGES = 1 << 20
MAX_OVERLAP = 16
"""Maximum number of .debug_aranges ranges below an address that are examined."""


class Aranges(NamedTuple):
    """The address ranges of .debug_aranges, sorted by their start.

    Attributes:
        start: (n,) start addresses in the file (svma).
        end: (n,) addresses after the ranges.
        unit: (n,) offsets of the units in .debug_info.
    """

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    unit: npt.NDArray[np.uint64]

    def find(self, svma: int) -> int | None:
        """Return the unit of the nearest .debug_aranges range below an address that covers it, or None."""
        at = int(np.searchsorted(self.start, svma & (1 << 64) - 1, "right"))
        low = max(0, at - MAX_OVERLAP)
        for place in range(at - 1, low - 1, -1):
            if svma < int(self.end[place]):
                return int(self.unit[place])
        return None


_Set = tuple[int, int, int, int]
"""A set of .debug_aranges: (size of an address, offset of the unit, offset of the ranges, maximum number of ranges)."""


def read_aranges(data: Data) -> Aranges:
    """Return the address ranges of all sets in .debug_aranges before the first broken one."""
    sets = _sets(data)
    parts = [_of_size(data, size, [each for each in sets if each[0] == size]) for size in (4, 8)]
    start, end, unit = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return Aranges(start[order], end[order], unit[order])


def _of_size(data: Data, size: int, sets: list[_Set]) -> Aranges:
    """Return the address ranges of .debug_aranges sets with this address size, unsorted. A pair of zeros ends a set."""
    unit = np.array([each[1] for each in sets], np.uint64)
    ranges = np.array([each[2] for each in sets], np.int64)
    count = np.array([each[3] for each in sets], np.int64)
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


def _sets(data: Data) -> list[_Set]:
    """Return the headers of all sets in .debug_aranges. The loop is short because a libc has two thousand sets."""
    head = struct.Struct(("<" if data.byteorder == "little" else ">") + "IHIB")
    content, whole, unpack, header = data.bytes, len(data), head.unpack_from, head.size
    found: list[_Set] = []
    at, left = 0, MAX_RANGES
    while at + header <= whole:
        begin = at
        length, _, unit, size = unpack(content, begin)
        at, stop = begin + header, begin + 4 + length
        if length >= 0xFFFFFFF0:
            try:
                length, offset_size, body = data.unit_length(begin)
                unit, at = data.fixed(body + 2, offset_size)
                size, at = data.fixed(at, 1)
            except FormatError:
                break
            stop = body + length
        if size != 8 and size != 4:
            break
        ranges = begin + -(-(at + 1 - begin) // (2 * size)) * 2 * size
        at = stop if stop < whole else whole
        pairs = (at - ranges) // (2 * size) if at > ranges else 0
        left -= pairs
        if left < 0:
            break
        found.append((size, unit, ranges, pairs))
    return found
