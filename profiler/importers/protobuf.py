"""Decoder of the fields of a protocol buffer's message: varints and bytes. Broken messages raise FormatError."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.errors import FormatError

Field = tuple[int, int | bytes]
MAX_FIELDS = 1 << 20
"""Maximum number of fields in a protobuf message that parse_fields() reads."""
MAX_ROWS = 1 << 22
"""Maximum number of fields with the same number in a protobuf message that group_fields() reads."""
_BITS = 64
_LONGEST = 10
"""Maximum size of a protobuf varint in bytes."""
_FIXED = {1: 8, 5: 4}
"""Sizes in bytes of the protobuf wire types of fixed width. Fields of these types are skipped."""


def parse_fields(data: bytes) -> list[Field]:
    """Return (number, value) of each field of a protobuf message, in the order of the message. Varints are unsigned."""
    found: list[Field] = []
    at, end = 0, len(data)
    while at < end:
        if len(found) >= MAX_FIELDS:
            raise FormatError("protobuf", at, f"a message of more than {MAX_FIELDS:,} fields")
        if at + 1 < end and (tag := data[at]) >= 0x80 > data[at + 1]:  # most varints have one or two bytes
            tag, at = tag & 0x7F | data[at + 1] << 7, at + 2
        else:
            tag, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
        kind = tag & 7
        if kind in (0, 2):
            if at + 1 < end and (value := data[at]) >= 0x80 > data[at + 1]:
                value, at = value & 0x7F | data[at + 1] << 7, at + 2
            else:
                value, at = (data[at], at + 1) if at < end and data[at] < 0x80 else _varint(data, at)
            if kind == 0:
                found.append((tag >> 3, value))
                continue
        elif kind in _FIXED:
            value = _FIXED[kind]
        else:
            raise FormatError("protobuf", at, f"no such type of a field: {kind}")
        if value > end - at:
            raise FormatError("protobuf", at, "a field reaches beyond its message")
        if kind == 2:
            found.append((tag >> 3, data[at : at + value]))
        at += value
    return found


class TooManyRows(FormatError):
    """A protobuf message has more fields of one number than the caller allows."""


class Grouped:
    """The fields of a large protobuf message that read() has decoded so far.

    Attributes:
        rows: Contents of all length-delimited fields, by field number.
        numbers: Last value of each varint field, by field number.
    """

    def __init__(self, data: bytes, max_groups: int = MAX_ROWS) -> None:
        self.rows: defaultdict[int, list[bytes]] = defaultdict(list)
        self.numbers: dict[int, int] = {}
        self._data, self._at, self._most = data, 0, max_groups

    def read(self, after: int = 0, before: Container[int] = ()) -> None:
        """Decode a protobuf message from where the last call stopped, to its end or to a given field.

        Args:
            after: Number of a field that must have been read before the call may stop.
            before: Numbers of the fields before which the call stops.

        Raises:
            FormatError: The message is broken.
            TooManyRows: The message has too many fields of one kind.
        """
        data, rows, at, end = self._data, self.rows, self._at, len(self._data)
        while at < end:
            began = at
            tag, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
            kind = tag & 7
            if kind in _FIXED:
                size = _FIXED[kind]
            elif kind in (0, 2):
                size, at = (data[at], at + 1) if at < end and data[at] < 0x80 else _varint(data, at)
            else:
                raise FormatError("protobuf", at, f"no such type of a field: {kind}")
            if kind == 0:
                self.numbers[tag >> 3] = size
                continue
            if size > end - at:
                raise FormatError("protobuf", at, "a field reaches beyond its message")
            if kind == 2:
                if after in rows and tag >> 3 in before:
                    at = began
                    break
                row = rows[tag >> 3]
                if len(row) >= self._most:
                    raise TooManyRows("protobuf", at, f"more than {self._most:,} fields of one kind")
                row.append(data[at : at + size])
                at = _read_repeated(data, at + size, tag, row, self._most - len(row))
                continue
            at += size
        self._at = at


def _read_repeated(data: bytes, at: int, tag: int, rows: list[bytes], room: int) -> int:
    """Append the contents of successive length-delimited fields with this one-byte tag to `rows`. At most `room` fields
    are read.

    Stop before a broken field, or one of 2^14 bytes or more. Return the offset after the last field that was read.
    """
    take, end = rows.append, len(data)
    while at + 2 < end and data[at] == tag and room > 0:
        begin, size = at + 2, data[at + 1]
        if size >= 0x80:
            begin, more = at + 3, data[at + 2]
            if more >= 0x80:
                break
            size += (more - 1) << 7
        if size > end - begin:
            break
        at = begin + size
        take(data[begin:at])
        room -= 1
    return at


def group_fields(data: bytes) -> tuple[dict[int, list[bytes]], dict[int, int]]:
    """Return all fields of a protobuf message, grouped by field number, for messages with very many fields.

    Returns:
        (contents of length-delimited fields by field number, last value of each varint field by field number).
    """
    found = Grouped(data)
    found.read()
    return found.rows, found.numbers


def parse_numbers(data: bytes) -> dict[int, int]:
    """Return the last value of each varint field of a protobuf message, by field number."""
    return {key: value for key, value in parse_fields(data) if isinstance(value, int)}


def read_fixed64(data: bytes, key: int) -> int:
    """Return the last 64-bit fixed field with this number in a protobuf message, 0 if there is none."""
    found = at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(data, at)
            continue
        if kind not in _FIXED and kind != 2:
            raise FormatError("protobuf", at, f"no such type of a field: {kind}")
        size, at = (_FIXED[kind], at) if kind in _FIXED else _varint(data, at)
        if size > len(data) - at:
            raise FormatError("protobuf", at, "a field reaches beyond its message")
        if tag == key << 3 | 1:
            found = int.from_bytes(data[at : at + size], "little")
        at += size
    return found


def read_texts(data: bytes, key: int) -> list[bytes]:
    """Return the contents of all length-delimited fields with this number in a protobuf message."""
    return [value for each, value in parse_fields(data) if each == key and isinstance(value, bytes)]


def read_indices(data: bytes, key: int) -> list[int]:
    """Return all values of a repeated integer field of a protobuf message, which may be packed or not."""
    rows = [
        value if isinstance(value, bytes) else pack_number(value) for each, value in parse_fields(data) if each == key
    ]
    return [int(each) for each in decode_repeated(rows)[0]]


def decode_repeated(rows: Sequence[bytes]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Decode a packed repeated protobuf field in each of many rows.

    Returns:
        (numbers of all rows, one row after the other; index at which each row begins, followed by the end of the last
            row).
    """
    data = np.frombuffer(b"".join(rows), np.uint8)
    last = data < 0x80
    ends = np.flatnonzero(last)
    sizes = row_sizes(rows)
    edges = np.append(0, np.cumsum(sizes))
    if not last[edges[1:][sizes > 0] - 1].all():
        raise FormatError("protobuf", len(data), "a number does not end")
    length = np.diff(ends, prepend=-1)
    if len(length) and length.max() > _LONGEST:
        raise FormatError("protobuf", int(ends[length.argmax()]), "a number does not end")
    first = ends - length + 1
    place = np.arange(len(data)) - np.repeat(first, length)
    bits = (data & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    numbers = np.add.reduceat(bits, first) if len(first) else np.zeros(0, np.uint64)
    return numbers, np.append(0, np.cumsum(last))[edges]


def row_sizes(rows: Sequence[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, rows), np.int64, len(rows))


def read_columns(rows: Sequence[bytes], keys: Sequence[int]) -> list[list[int]]:
    """Return chosen varint fields of many protobuf messages: for each key a list with the value in each message, 0 if
    it has none.
    """
    words, edges = decode_repeated(rows)
    tags = words[::2]
    if (np.diff(edges) % 2).any() or (tags & np.uint64(7)).any():  # there are fields of other kinds
        found = [parse_numbers(row) for row in rows]
        return [[row.get(key, 0) for row in found] for key in keys]
    row_of = np.repeat(np.arange(len(rows)), np.diff(edges) // 2)
    result = np.zeros((len(keys), len(rows)), np.uint64)
    for column, key in zip(result, keys, strict=True):
        here = tags == key << 3
        column[row_of[here]] = words[1::2][here]
    return [column.tolist() for column in result]


def pack_number(number: int) -> bytes:
    """Encode a number as a protobuf varint, as one element of a packed repeated field. decode_repeated() decodes it."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def to_signed(number: int) -> int:
    """Convert an unsigned 64-bit number to an int64."""
    return number - (1 << _BITS) if number >> (_BITS - 1) else number


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, offset after it) of the protobuf varint at an offset."""
    value = shift = 0
    while at < len(data) and shift < _BITS + 6:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & (1 << _BITS) - 1, at
        shift += 7
    raise FormatError("protobuf", at, "a number does not end")
