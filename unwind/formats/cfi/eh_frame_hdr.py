"""The binary search table of .eh_frame_hdr (LSB Core, 10.6.2).

In: the section's bytes. Out: columns. A table that is broken in itself is a FormatError here; one that lies about
.eh_frame is found out by its user, who compares each FDE with the entry that led to it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

import numpy as np

from pyprof.errors import FormatError
from pyprof.records import dataclass
from pyprof.unwind.formats.cfi.entries import CfiSection
from pyprof.unwind.formats.cfi.pointers import (
    APPLICATION,
    DATAREL,
    INDIRECT,
    OMIT,
    PCREL,
    SIGNED,
    Bases,
    fixed_size,
    read_encoded,
)

NAME = ".eh_frame_hdr"


@dataclass(frozen=True, slots=True)
class SearchTable:
    """start: (n,) uint64 svma, ascending. offset: (n,) int64, the FDE's place in .eh_frame. As memoryviews: taking one
    number out of a memoryview costs a third of taking it out of an array.
    """

    start: memoryview
    offset: memoryview

    def last_at(self, svma: int) -> int:
        """Place of the last entry that starts at or before svma, -1 if there is none."""
        return bisect_right(self.start, svma) - 1


def read_search_table(data: memoryview, svma: int, frames: CfiSection) -> SearchTable | None:
    """The table, None if the header has none. frames: the .eh_frame that it must belong to.

    Raises FormatError where the header or the table cannot be right.
    """
    try:
        return _read(data, svma, frames)
    except (ValueError, IndexError, struct.error) as error:
        raise FormatError(NAME, 0, str(error)) from None


def _read(data: memoryview, svma: int, frames: CfiSection) -> SearchTable | None:
    version, pointer_encoding, count_encoding, encoding = data[0], data[1], data[2], data[3]
    if version != 1:
        raise ValueError(f"unknown version {version}")

    def pointer(at: int, with_encoding: int) -> tuple[int, int]:
        return read_encoded(
            data,
            at,
            with_encoding,
            address_size=frames.address_size,
            byteorder=frames.byteorder,
            svma=svma,
            bases=Bases(data=svma),
        )

    at = 4
    if pointer_encoding != OMIT:
        start, at = pointer(at, pointer_encoding)
        if start != frames.svma:
            raise ValueError(f"belongs to an .eh_frame at {start:#x}, not to the one at {frames.svma:#x}")
    if OMIT in (count_encoding, encoding):
        return None
    count, at = pointer(at, count_encoding)
    if not count:
        return None
    size = fixed_size(encoding, frames.address_size)
    application = encoding & APPLICATION
    if not size or encoding & INDIRECT or application not in (0, PCREL, DATAREL):
        raise ValueError(f"unknown table encoding {encoding:#x}")
    if count * 2 * size > len(data) - at:
        raise ValueError(f"{count} entries run past the section")
    return _table(data, at, count, encoding, svma, frames)


def _table(data: memoryview, at: int, count: int, encoding: int, svma: int, frames: CfiSection) -> SearchTable:
    size, application = fixed_size(encoding, frames.address_size), encoding & APPLICATION
    order = "<" if frames.byteorder == "little" else ">"
    words = np.frombuffer(data[at : at + count * 2 * size], f"{order}{'i' if encoding & SIGNED else 'u'}{size}")
    # Modulo 2**64 throughout, as addresses are.
    table = words.astype(np.int64).view(np.uint64) if encoding & SIGNED else words.astype(np.uint64)
    if application == DATAREL:
        table = table + np.uint64(svma)
    elif application == PCREL:
        table = table + np.uint64(svma + at) + np.arange(2 * count, dtype=np.uint64) * np.uint64(size)
    if frames.address_size == 4:
        table = table & np.uint64(0xFFFF_FFFF)
    start_column = np.ascontiguousarray(table[0::2])
    offset_column = (table[1::2] - np.uint64(frames.svma)).view(np.int64)
    if (start_column[1:] < start_column[:-1]).any():
        raise ValueError("the table is not sorted")
    if (offset_column < 0).any() or (offset_column >= len(frames.data)).any():
        raise ValueError("the table points out of .eh_frame")
    return SearchTable(start_column.data, offset_column.data)
