"""The index of a Breakpad symbol file: the places of its records, from one pass over the file.

build_index() takes a ByteSource of text and returns a RecordIndex: addresses, sizes and file offsets. Source lines and
the deltas of STACK CFI follow the record that they belong to, so they are not indexed. No content of a file raises:
malformed records are left out and counted by Tolerate.
Source: docs/symbol_files.md of Breakpad; src/processor/basic_source_line_resolver.cc.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.objfile.byte_source import ByteSource

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

CHUNK = 1 << 23
"""Number of bytes of a Breakpad symbol file that are processed at once. A longer line is left out."""

Tolerate = Callable[[str, int, int], None]
"""Function that receives each tolerated error of a Breakpad symbol file: (description, number of the first line with
this error, number of such lines).
"""

_PAD = b"\n" * 32

# The kind of a line by its first byte. The first sixteen bytes determine the kind of a record.
_EMPTY, _OTHER, _LINE, _UPPER = 0, 1, 2, 3
_BY_BYTE = np.full(256, _OTHER, np.uint8)
_BY_BYTE[[10, 13]] = _EMPTY
_BY_BYTE[[*range(ord("0"), ord("9") + 1), *range(ord("a"), ord("f") + 1)]] = _LINE
_BY_BYTE[[*b"FIMPS"]] = _UPPER

_DIGIT = np.full(256, 255, np.uint8)
for _at, _char in enumerate(b"0123456789abcdef"):
    _DIGIT[_char] = _at
for _at, _char in enumerate(b"ABCDEF"):
    _DIGIT[_char] = 10 + _at

KINDS = (b"FUNC ", b"PUBLIC ", b"FILE ", b"INLINE_ORIGIN ", b"STACK CFI INIT ", b"STACK WIN ")
"""Prefixes of the records of a Breakpad symbol file that are indexed."""
_OTHERS = (b"STACK CFI ", b"INLINE ", b"INFO ", b"MODULE ")
_CFI_INIT, _CFI = KINDS.index(b"STACK CFI INIT "), len(KINDS)


@dataclass(frozen=True, slots=True)
class Ranges:
    """The records of one kind with an address in a Breakpad symbol file, ascending by address.

    Attributes:
        address: (n,) uint64.
        size: (n,) uint64, in bytes; 0 if it is not stated.
        offset: (n,) int64, offset of the record in the file.
    """

    address: U64
    size: U64
    offset: I64

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True)
class NumberedRecords:
    """The records of one kind with a number in a Breakpad symbol file, ascending by number.

    Attributes:
        number: (n,) int64.
        offset: (n,) int64, offset of the record in the file.
    """

    number: I64
    offset: I64

    def offset_of(self, number: int) -> int | None:
        at = int(np.searchsorted(self.number, number))
        return int(self.offset[at]) if at < len(self.number) and int(self.number[at]) == number else None


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """The places of all records in a Breakpad symbol file.

    Attributes:
        functions: FUNC records.
        publics: PUBLIC records.
        files: FILE records.
        origins: INLINE_ORIGIN records.
        cfi: STACK CFI INIT records.
        win: STACK WIN records by type: 4 (frame data) and 0 (FPO).
        lines: Number of lines in the file.
        marks: (offset in the file, line number) of some lines, ascending, from which other line numbers are counted.
    """

    functions: Ranges
    publics: Ranges
    files: NumberedRecords
    origins: NumberedRecords
    cfi: Ranges
    win: dict[int, Ranges]
    lines: int
    marks: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Columns:
    """The fields of all records of one kind in a Breakpad symbol file, collected as arrays, one for each chunk of the
    file.
    """

    first: list[U64] = field(default_factory=list)
    second: list[U64] = field(default_factory=list)
    third: list[U64] = field(default_factory=list)
    offset: list[I64] = field(default_factory=list)


def build_index(source: ByteSource, tolerate: Tolerate) -> RecordIndex:
    """Index a Breakpad symbol file in one pass. Memory use is a few chunks, and 24 bytes for each record."""
    columns = [_Columns() for _ in KINDS]
    marks: list[tuple[int, int]] = []
    at, line, before = 0, 1, -1
    in_function = False
    while at < source.size:
        data = bytes(source.read(at, CHUNK))
        if not data:
            break
        end = data.rfind(b"\n") + 1
        if not end and at + len(data) < source.size:
            tolerate("line of over 8 MiB", line, 1)
            at, line = _next_line(source, at), line + 1
            continue
        end = end or len(data)
        if at + len(data) >= source.size:
            end = len(data)  # the last line may lack its newline
        marks.append((at, line))
        chunk = _Chunk(data[:end], at, line, tolerate)
        before, in_function = chunk.read(columns, before, in_function)
        at += end
        line += chunk.count
    return _finish(columns, line - 1, tuple(marks), tolerate)


def _next_line(source: ByteSource, at: int) -> int:
    while at < source.size:
        data = bytes(source.read(at, CHUNK))
        end = data.find(b"\n") + 1
        if end or not data:
            return at + end if end else source.size
        at += len(data)
    return at


class _Chunk:
    """A block of complete lines of a Breakpad symbol file."""

    def __init__(self, data: bytes, base: int, line: int, tolerate: Tolerate) -> None:
        self._base = base
        self._line = line
        self._tolerate = tolerate
        padded = data + _PAD
        self._buf: Bytes = np.frombuffer(padded, np.uint8)
        self._words = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))
        ends = np.flatnonzero(self._buf[: len(data)] == 10)
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        self._starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
        self.count = len(ends)

    def read(self, columns: list[_Columns], before: int, in_function: bool) -> tuple[int, bool]:
        """Append the Breakpad records of the chunk to the columns.

        Args:
            columns: The columns of each kind of record, in the order of KINDS.
            before: Kind of the record before the chunk (index into KINDS), -1 if that line is no indexed record.
            in_function: A FUNC record precedes the chunk.

        Returns:
            (kind of the last record in the chunk, whether a FUNC record precedes the chunk's end).
        """
        shapes = _BY_BYTE[self._buf[self._starts]]
        self._odd("unknown record", np.flatnonzero(shapes == _OTHER))
        upper = np.flatnonzero(shapes == _UPPER)
        kinds = self._kinds(self._starts[upper])
        self._odd("unknown record", upper[kinds < 0])
        functions = upper[kinds == 0]
        if not in_function:
            stop = functions[0] if len(functions) else self.count
            self._odd("line record before any FUNC", np.flatnonzero(shapes[:stop] == _LINE))
        self._check_deltas(upper, kinds, before)
        for kind in range(len(KINDS)):
            self._fields(kind, upper[kinds == kind], columns[kind])
        last = int(kinds[-1]) if len(upper) and upper[-1] == self.count - 1 else -1
        return last, in_function or bool(len(functions))

    def _kinds(self, starts: I64) -> I64:
        """Return for each line of the chunk an index into KINDS and _OTHERS, of shape (n,), or -1."""
        low, high = self._words[starts], self._words[starts + 8]
        kinds = np.full(len(starts), -1, np.int64)
        for kind, prefix in enumerate((*KINDS, *_OTHERS)):
            same = low & _mask(prefix[:8]) == int.from_bytes(prefix[:8], "little")
            if len(prefix) > 8:
                same &= high & _mask(prefix[8:]) == int.from_bytes(prefix[8:], "little")
            kinds[same & (kinds < 0)] = kind
        return kinds

    def _check_deltas(self, upper: I64, kinds: I64, before: int) -> None:
        """Count STACK CFI records that follow no other STACK CFI record. No lookup finds such records."""
        delta = np.flatnonzero(kinds == _CFI)
        if not len(delta):
            return
        follows = np.zeros(len(upper), np.bool_)
        cfi = (kinds == _CFI) | (kinds == _CFI_INIT)
        follows[1:] = cfi[:-1] & (upper[1:] == upper[:-1] + 1)
        if upper[0] == 0:
            follows[0] = before in (_CFI, _CFI_INIT)
        self._odd("STACK CFI that follows no INIT", upper[delta[~follows[delta]]])

    def _fields(self, kind: int, lines: I64, out: _Columns) -> None:
        if not len(lines):
            return
        name = KINDS[kind]
        starts = self._starts[lines]
        at = starts + len(name)
        base = 10 if name in (b"FILE ", b"INLINE_ORIGIN ") else 16
        if name in (b"FUNC ", b"PUBLIC "):
            at = at + 2 * ((self._buf[at] == ord("m")) & (self._buf[at + 1] == ord(" ")))
        first, at, good = self._number(at, base)
        second = third = np.zeros(len(lines), np.uint64)
        if name in (b"FUNC ", b"STACK CFI INIT ", b"STACK WIN "):
            second, at, also = self._number(at, 16)
            good &= also
        if name == b"STACK WIN ":
            third, at, also = self._number(at, 16)
            good &= also
        self._odd(f"malformed {name.decode().rstrip()}", lines[~good])
        out.first.append(first[good])
        out.second.append(second[good])
        out.third.append(third[good])
        out.offset.append(starts[good] + self._base)

    def _number(self, at: I64, base: int) -> tuple[U64, I64, npt.NDArray[np.bool_]]:
        """Parse a number field of many records, which ends at white space.

        Returns:
            (values, offsets of the next fields, mask of valid numbers)
        """
        buf = self._buf
        value = np.zeros(len(at), np.uint64)
        begin, at = at, at.copy()
        going = np.ones(len(at), np.bool_)
        for _ in range(16 if base == 16 else 15):
            digit = _DIGIT[buf[at]]
            going &= digit < base
            if not going.any():
                break
            value[going] = value[going] * np.uint64(base) + digit[going]
            at += going
        stop = buf[at]
        good = (at > begin) & ((stop == ord(" ")) | (stop == 10) | (stop == 13) | (stop == 9))
        for _ in range(8):
            space = (buf[at] == ord(" ")) | (buf[at] == 9)
            if not space.any():
                break
            at += space
        return value, at, good

    def _odd(self, what: str, lines: I64) -> None:
        if len(lines):
            self._tolerate(what, self._line + int(lines[0]), len(lines))


def _mask(prefix: bytes) -> int:
    return (1 << 8 * len(prefix)) - 1


def _finish(columns: list[_Columns], lines: int, marks: tuple[tuple[int, int], ...], tolerate: Tolerate) -> RecordIndex:
    functions, publics, files, origins, cfi, win = columns
    start, size, offset = _join(functions.first), _join(functions.second), _join_offsets(functions)
    if not size.all():
        tolerate("FUNC without a size", 0, int((size == 0).sum()))
    address = _join(publics.first)
    by_type, rva = _join(win.first), _join(win.second)
    other = int(((by_type != 0) & (by_type != 4)).sum())
    if other:
        tolerate("STACK WIN of another type than 0 or 4", 0, other)
    return RecordIndex(
        functions=_ranges(start, size, offset, size != 0),
        publics=_ranges(address, np.zeros_like(address), _join_offsets(publics), address != 0),
        files=_numbered(files),
        origins=_numbered(origins),
        cfi=_ranges(_join(cfi.first), _join(cfi.second), _join_offsets(cfi), _join(cfi.second) != 0),
        win={kind: _ranges(rva, _join(win.third), _join_offsets(win), by_type == kind) for kind in (4, 0)},
        lines=lines,
        marks=marks,
    )


def _ranges(address: U64, size: U64, offset: I64, wanted: npt.NDArray[np.bool_]) -> Ranges:
    """Return the selected Breakpad records, ascending by address. Of two with the same address, the first in the file
    is kept.
    """
    address, size, offset = address[wanted], size[wanted], offset[wanted]
    order = np.argsort(address, kind="stable")
    address = address[order]
    first = np.ones(len(address), np.bool_)
    first[1:] = address[1:] != address[:-1]
    order = order[first]
    return Ranges(address[first], size[order], offset[order])


def _numbered(columns: _Columns) -> NumberedRecords:
    number, offset = _join(columns.first).astype(np.int64), _join_offsets(columns)
    number, first = np.unique(number, return_index=True)
    return NumberedRecords(number, offset[first])


def _join(arrays: list[U64]) -> U64:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.uint64)


def _join_offsets(columns: _Columns) -> I64:
    return np.concatenate(columns.offset) if columns.offset else np.zeros(0, np.int64)
