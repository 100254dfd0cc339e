"""Readers of DWARF's primitive encodings, and time limits."""

from __future__ import annotations

import time

from pyprof.errors import FormatError


class OutOfTime(Exception):
    """The time limit for resolving names was reached. Everything that was read so far stays valid."""


class Deadline:
    """A time limit in seconds of the monotonic clock, None for no limit. check() raises OutOfTime after it."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        if self._end is not None and time.monotonic() > self._end:
            raise OutOfTime


class Data:
    """The bytes of one DWARF section.

    Its readers return (value, offset after it) and raise FormatError at the end of the section.
    """

    __slots__ = ("byteorder", "bytes", "name")

    def __init__(self, name: str, data: memoryview | None, byteorder: str) -> None:
        self.name = name
        self.bytes = b"" if data is None else bytes(data) if not isinstance(data.obj, bytes) else _whole(data)
        self.byteorder: str = byteorder

    def __len__(self) -> int:
        return len(self.bytes)

    def fixed(self, at: int, size: int) -> tuple[int, int]:
        """Read an unsigned number of `size` bytes in a DWARF section."""
        end = at + size
        if at < 0 or end > len(self.bytes):
            raise FormatError(self.name, max(at, 0), "cut off")
        return int.from_bytes(self.bytes[at:end], "little" if self.byteorder == "little" else "big"), end

    def uleb(self, at: int) -> tuple[int, int]:
        """Read an unsigned LEB128 number in a DWARF section."""
        value = shift = 0
        data = self.bytes
        try:
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    return value, at
                shift += 7
                if shift > 63:
                    raise FormatError(self.name, at, "number of more than 64 bits")
        except IndexError:
            raise FormatError(self.name, at, "cut off") from None

    def sleb(self, at: int) -> tuple[int, int]:
        """Read a signed LEB128 number in a DWARF section."""
        start = at
        value, at = self.uleb(at)
        bits = 7 * (at - start)
        return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at

    def string(self, at: int) -> tuple[bytes, int]:
        """Read a NUL-terminated string in a DWARF section."""
        end = self.bytes.find(b"\0", at) if 0 <= at < len(self.bytes) else -1
        if end < 0:
            raise FormatError(self.name, max(at, 0), "string without end")
        return self.bytes[at:end], end + 1

    def unit_length(self, at: int) -> tuple[int, int, int]:
        """Read a unit length and return (length, size of offsets, offset after it): DWARF 5, 7.4."""
        length, at = self.fixed(at, 4)
        if length == 0xFFFFFFFF:
            length, at = self.fixed(at, 8)
            return length, 8, at
        if length >= 0xFFFFFFF0:
            raise FormatError(self.name, at, "reserved unit length")
        return length, 4, at


def _whole(view: memoryview) -> bytes:
    """Return the bytes object behind a memoryview without a copy if the view covers all of it."""
    whole = view.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(view) else bytes(view)
