"""Reading DWARF's primitive encodings, and time limits for whole readings."""

from __future__ import annotations

import time

from pyprof.errors import FormatError


class OutOfTime(Exception):
    """The time that naming may take is over; what was read so far stays."""


class Deadline:
    """Raises OutOfTime once seconds of monotonic time have passed; None never does."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        if self._end is not None and time.monotonic() > self._end:
            raise OutOfTime


class Data:
    """One section. Reads return (value, offset behind it) and raise FormatError past the end."""

    __slots__ = ("byteorder", "bytes", "name")

    def __init__(self, name: str, data: memoryview | None, byteorder: str) -> None:
        self.name = name
        self.bytes = b"" if data is None else bytes(data) if not isinstance(data.obj, bytes) else _whole(data)
        self.byteorder: str = byteorder

    def __len__(self) -> int:
        return len(self.bytes)

    def fixed(self, at: int, size: int) -> tuple[int, int]:
        """Unsigned, size bytes."""
        end = at + size
        if at < 0 or end > len(self.bytes):
            raise FormatError(self.name, max(at, 0), "cut off")
        return int.from_bytes(self.bytes[at:end], "little" if self.byteorder == "little" else "big"), end

    def uleb(self, at: int) -> tuple[int, int]:
        """Unsigned LEB128."""
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
        """Signed LEB128."""
        start = at
        value, at = self.uleb(at)
        bits = 7 * (at - start)
        return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at

    def string(self, at: int) -> tuple[bytes, int]:
        """Up to the zero byte."""
        end = self.bytes.find(b"\0", at) if 0 <= at < len(self.bytes) else -1
        if end < 0:
            raise FormatError(self.name, max(at, 0), "string without end")
        return self.bytes[at:end], end + 1

    def unit_length(self, at: int) -> tuple[int, int, int]:
        """(length, size of offsets, offset behind it): DWARF 5, 7.4."""
        length, at = self.fixed(at, 4)
        if length == 0xFFFFFFFF:
            length, at = self.fixed(at, 8)
            return length, 8, at
        if length >= 0xFFFFFFF0:
            raise FormatError(self.name, at, "reserved unit length")
        return length, 4, at


def _whole(view: memoryview) -> bytes:
    """The bytes behind a view without a copy, if it shows all of them."""
    whole = view.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(view) else bytes(view)
