"""The binary search table of .eh_frame_hdr (LSB Core, 10.6.2).

A table that is invalid in itself raises FormatError here. A table that disagrees with .eh_frame is found by the caller,
which compares each FDE with the entry that led to it.
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
    pointer_size,
    read_encoded,
)

NAME = ".eh_frame_hdr"


@dataclass(frozen=True, slots=True)
class SearchTable:
    """The search table of .eh_frame_hdr as columns. They are memoryviews, because indexing one costs a third of
    indexing an array.

    Attributes:
        start: uint64 of shape (n,): start of each function in the file (svma), ascending.
        offset: int64 of shape (n,): offset of its FDE in .eh_frame.
    """

    start: memoryview
    offset: memoryview

    def last_at(self, svma: int) -> int:
        """Return the index of the search table's last entry that starts at or before a file address, -1 if there is
        none.
        """
        return bisect_right(self.start, svma) - 1


def read_search_table(data: memoryview, svma: int, frames: CfiSection) -> SearchTable | None:
    """Return the search table of an .eh_frame_hdr, or None if the header has none.

    Args:
        data: Bytes of the .eh_frame_hdr.
        svma: Its address in the file.
        frames: The .eh_frame that it must belong to.

    Raises:
        FormatError: The header or the table is invalid.
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
    size = pointer_size(encoding, frames.address_size)
    application = encoding & APPLICATION
    if not size or encoding & INDIRECT or application not in (0, PCREL, DATAREL):
        raise ValueError(f"unknown table encoding {encoding:#x}")
    if count * 2 * size > len(data) - at:
        raise ValueError(f"{count} entries run past the section")
    return _table(data, at, count, encoding, svma, frames)


def _table(data: memoryview, at: int, count: int, encoding: int, svma: int, frames: CfiSection) -> SearchTable:
    size, application = pointer_size(encoding, frames.address_size), encoding & APPLICATION
    order = "<" if frames.byteorder == "little" else ">"
    words = np.frombuffer(data[at : at + count * 2 * size], f"{order}{'i' if encoding & SIGNED else 'u'}{size}")
    # All arithmetic is modulo 2**64, like that of addresses.
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
