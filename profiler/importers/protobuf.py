"""Fields of a protocol buffer's message: varints and bytes. Raises FormatError."""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.errors import FormatError

Field = tuple[int, int | bytes]
_BITS = 64
_FIXED = {1: 8, 5: 4}
"""Wire types of fixed width, which are passed over."""


def fields(data: bytes) -> Iterator[Field]:
    """(number, value) in the order of the message; numbers are unsigned."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise FormatError("protobuf", at, f"no such type of a field: {kind}")
        if size > len(data) - at:
            raise FormatError("protobuf", at, "a field reaches beyond its message")
        if kind == 2:
            yield tag >> 3, data[at : at + size]
        at += size


def numbers(data: bytes) -> dict[int, int]:
    """The fields that are numbers, the last of each."""
    return {key: value for key, value in fields(data) if isinstance(value, int)}


def repeated(value: int | bytes) -> list[int]:
    """A repeated number: one, or several packed."""
    if isinstance(value, int):
        return [value]
    found = []
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def signed(number: int) -> int:
    """An int64."""
    return number - (1 << _BITS) if number >> (_BITS - 1) else number


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where the next field begins)"""
    value = shift = 0
    while at < len(data) and shift < _BITS + 6:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & (1 << _BITS) - 1, at
        shift += 7
    raise FormatError("protobuf", at, "a number does not end")
