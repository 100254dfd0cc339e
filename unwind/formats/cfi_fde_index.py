"""The FDE that covers an address: the table of .eh_frame_hdr, or an index built in one pass.

The section of a large binary has hundreds of thousands of entries. Their lengths are followed one by one, because each
gives the place of the next entry. Everything else is done in columns. Entries of unusual form (64-bit DWARF, rare
encodings) are read one by one.

The binary search table of .eh_frame_hdr (LSB Core, 10.6.2) raises FormatError here if it is invalid in itself. A table
that disagrees with .eh_frame is found by the caller, which compares each FDE with the entry that led to it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.unwind.formats.cfi_cie_and_fde import (
    APPLICATION,
    DATAREL,
    EXTENDED,
    INDIRECT,
    OMIT,
    PCREL,
    SIGNED,
    Bases,
    CfiEntries,
    CfiSection,
    pointer_size,
    read_encoded,
)

Columns = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Type of FDE columns: arrays (start, end, offset) of equal length."""

MAX_BROKEN_CIES = 1000
"""Number of unreadable CIEs after which no further CIE is read. It bounds the time for a section of random bytes."""

MAX_NESTED = 64
"""Maximum number of FDEs of an index that are examined for one address. Real overlaps are rare and shallow."""


@dataclass(frozen=True)
class CfiIndex:
    """The FDEs of a CFI section, sorted by start.

    Of FDEs with equal starts, the smallest comes last. Of FDEs with equal ranges, the one that is first in the section
    comes last.

    Attributes:
        start: uint64 of shape (n,): start of each function in the file (svma).
        end: uint64 of shape (n,): address after it.
        offset: int64 of shape (n,): offset of the FDE in the section.
        reach: uint64 of shape (n,): the highest end among the FDEs up to this one.
        oddities: Number of tolerated errors, by description.
    """

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    offset: npt.NDArray[np.int64]
    reach: npt.NDArray[np.uint64]
    oddities: Counter[str]
    _starts: memoryview = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", self.start.data)

    def offset_at(self, svma: int) -> int | None:
        """Return the section offset of the smallest FDE that covers a file address, or None."""
        last = bisect_right(self._starts, svma) - 1
        for at in range(last, max(last - MAX_NESTED, -1), -1):
            if svma < self.end[at]:
                return int(self.offset[at])
            if svma >= self.reach[at]:
                break
        return None


def build_index(
    entries: CfiEntries, *, stop_at_terminator: bool = False, live: tuple[tuple[int, int], ...] = ()
) -> CfiIndex:
    """Index the FDEs of a CFI section. Broken entries are left out and counted; nothing is raised.

    Args:
        entries: Reads the entries of the section.
        stop_at_terminator: The section's end is uncertain, so that an entry with length zero ends it.
        live: (start, end) ranges of file addresses. The linker dropped a function that starts outside of them. ()
            stands for everywhere.
    """
    section = entries.section
    oddities: Counter[str] = Counter()
    plain, wide = _offsets(section, stop_at_terminator, oddities)
    starts, ends, offsets = _plain_columns(entries, plain, wide, oddities)
    if wide:
        more = _scalar_columns(entries, wide, oddities)
        starts, ends, offsets = (np.concatenate(pair) for pair in zip((starts, ends, offsets), more, strict=True))
    covering = ends > starts
    if live:
        covering &= np.any([(starts >= np.uint64(a)) & (starts < np.uint64(b)) for a, b in live], axis=0)
    starts, ends, offsets = starts[covering], ends[covering], offsets[covering]
    # The last key of lexsort is compared first, and ~x sorts in descending order.
    order = np.lexsort((~offsets, ~ends, starts))
    starts, ends, offsets = starts[order], ends[order], offsets[order]
    return CfiIndex(starts, ends, offsets, np.maximum.accumulate(ends), oddities)


def _offsets(section: CfiSection, stop_at_terminator: bool, oddities: Counter[str]) -> tuple[list[int], list[int]]:
    """Return (offsets of CFI entries in the 32-bit DWARF format, offsets of entries in the 64-bit format)."""
    data = section.data
    order = "<" if section.byteorder == "little" else ">"
    word = struct.Struct(order + "I").unpack_from
    long = struct.Struct(order + "Q").unpack_from
    plain: list[int] = []
    wide: list[int] = []
    found = plain.append
    at, last = 0, len(data) - 8
    while at <= last:
        (length,) = word(data, at)
        if length - 4 <= last - at:  # the whole entry lies in the section; EXTENDED never does
            if length < 4:
                if length or stop_at_terminator:
                    break
                at += _zeros(data, at)  # terminators between the contributions of two object files
                continue
            found(at)
            at += length + 4
        elif length == EXTENDED and at + 12 <= len(data) and long(data, at + 4)[0] <= len(data) - at - 12:
            wide.append(at)
            at += long(data, at + 4)[0] + 12
        else:
            break
    ended = at >= len(data) or stop_at_terminator or not any(data[at : at + 4])
    if not ended:
        oddities[f"cfi_section_truncated:{section.name}"] += 1
    return plain, wide


def _zeros(data: memoryview, at: int) -> int:
    """Return the length in bytes of a run of zero words at an offset of a CFI section: 4 (the caller has read one zero
    word) to 4096.
    """
    chunk = bytes(data[at : at + 4096])
    return max((len(chunk) - len(chunk.lstrip(b"\0"))) & ~3, 4)


def _words(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size: int, dtype: str) -> npt.NDArray[np.uint64]:
    """Return the words at arbitrary offsets of a section as uint64. They are sign-extended if their dtype is signed."""
    words = np.zeros(len(at), dtype)
    raw = words.view(np.uint8).reshape(-1, size)
    for byte in range(size):
        raw[:, byte] = data[at + byte]
    return words.astype(np.int64).view(np.uint64) if dtype[1] == "i" else words.astype(np.uint64)


def _kinds(
    entries: CfiEntries, offsets: list[int], counts: list[int], oddities: Counter[str]
) -> dict[tuple[int, int, int], list[int]]:
    """Group CIEs by (address encoding, address size, segment size).

    Args:
        entries: Reads the CIEs.
        offsets: Offsets of the CIEs.
        counts: Number of FDEs of each CIE.
        oddities: A counter to which the number of FDEs of unreadable CIEs is added.

    Returns:
        The indexes into `offsets` of the CIEs of each group.
    """
    kinds: dict[tuple[int, int, int], list[int]] = {}
    broken = 0
    for number, offset in enumerate(offsets):
        try:
            known = entries.cie(offset) if broken < MAX_BROKEN_CIES else None
        except FormatError:
            known = None
        if known is None:
            broken += 1
            oddities[f"cie_unreadable:{entries.section.name}"] += counts[number]
            continue
        kinds.setdefault((known.encoding, known.address_size, known.segment_size), []).append(number)
    return kinds


def _plain_columns(entries: CfiEntries, plain: list[int], odd: list[int], oddities: Counter[str]) -> Columns:
    """Read FDEs whose addresses have a fixed size into the columns of an index. The offsets of all others are appended
    to `odd`.
    """
    section = entries.section
    order = "<" if section.byteorder == "little" else ">"
    data = np.frombuffer(section.data, np.uint8)
    at = np.array(plain, np.int64)
    length = _words(data, at, 4, order + "u4").astype(np.int64)
    pointer = _words(data, at + 4, 4, order + "u4").astype(np.int64)
    if section.eh:
        is_fde = pointer != 0
        cie = at + 4 - pointer
    else:
        is_fde = pointer != EXTENDED
        cie = pointer
    at, length, cie = at[is_fde], length[is_fde], cie[is_fde]
    parts: list[Columns] = []
    unique, group, counts = np.unique(cie, return_inverse=True, return_counts=True)
    # Each compilation unit has its own CIE. Most are equal, and only the encoding of addresses matters here.
    kinds = _kinds(entries, unique.tolist(), counts.tolist(), oddities)
    for (encoding, address_size, segment_size), numbers in kinds.items():
        member = np.zeros(len(unique), np.bool_)
        member[numbers] = True
        mine = member[group]
        size = pointer_size(encoding, address_size)
        if encoding & APPLICATION not in (0, PCREL) or encoding & 0x80 or size not in (2, 4, 8):
            odd.extend(at[mine].tolist())
            continue
        parts.append(_addresses(section, data, at[mine], length[mine], encoding, address_size, size, segment_size))
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64)
    starts, ends, offsets = (np.concatenate(column) for column in zip(*parts, strict=True))
    return starts, ends, offsets


def _addresses(
    section: CfiSection,
    data: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
    encoding: int,
    address_size: int,
    size: int,
    segment_size: int,
) -> Columns:
    whole = length >= 4 + segment_size + 2 * size
    at = at[whole]
    order = "<" if section.byteorder == "little" else ">"
    field = at + 8 + segment_size
    start = _words(data, field, size, f"{order}{'i' if encoding & SIGNED else 'u'}{size}")
    if encoding & APPLICATION == PCREL:
        start = start + field.astype(np.uint64) + np.uint64(section.svma)
    if address_size == 4:
        start = start & np.uint64(0xFFFF_FFFF)
    end = start + _words(data, field + size, size, f"{order}u{size}")
    if address_size == 4:
        end = np.minimum(end, np.uint64(1 << 32))
    return start, end, at  # an end that wrapped around lies below its start, so the entry covers nothing


def _scalar_columns(entries: CfiEntries, odd: list[int], oddities: Counter[str]) -> Columns:
    rows: list[tuple[int, int, int]] = []
    for offset in odd:
        try:
            if entries.is_cie(offset):
                continue
            fde = entries.fde(offset)
        except FormatError:
            oddities[f"fde_unreadable:{entries.section.name}"] += 1
            continue
        rows.append((fde.start, min(fde.end, (1 << 64) - 1), offset))
    return (
        np.array([r[0] for r in rows], np.uint64),
        np.array([r[1] for r in rows], np.uint64),
        np.array([r[2] for r in rows], np.int64),
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
