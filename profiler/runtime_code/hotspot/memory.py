"""Bounded reads of a virtual machine's memory. Each read may fail, and each value may be wrong."""

from __future__ import annotations

from pyprof.errors import FormatError
from pyprof.model.modules import ReadMemory

_LIMIT = 1 << 63


class VmMemory:
    """A reader of little-endian values in one Java process's memory."""

    def __init__(self, read: ReadMemory) -> None:
        self._read = read

    def renew(self, read: ReadMemory) -> None:
        """Read the Java process's memory by another function from now on: that of the current address space."""
        self._read = read

    def read(self, avma: int, size: int) -> bytes:
        """Return `size` bytes of a Java process's memory.

        Raises:
            FormatError: The bytes are not readable.
        """
        data = self._read(avma, size) if 0 < avma < _LIMIT - size else b""
        if len(data) != size:
            raise FormatError("HotSpot", avma, f"{size} bytes at {avma:#x} are not readable")
        return data

    def number(self, avma: int, size: int, signed: bool = False) -> int:
        """Return a number of `size` bytes at an address in a Java process.

        Raises:
            FormatError: The number is not readable.
        """
        return int.from_bytes(self.read(avma, size), "little", signed=signed)

    def word(self, avma: int) -> int:
        """Return the address-sized word at an address in a Java process.

        Raises:
            FormatError: The word is not readable.
        """
        return self.number(avma, 8)

    def text(self, avma: int, most: int = 256) -> str:
        """Return the text at an address in a Java process up to its null byte, "" if it is not readable."""
        data = self._read(avma, most) if 0 < avma < _LIMIT - most else b""
        return data.partition(b"\0")[0].decode("utf-8", "backslashreplace")
