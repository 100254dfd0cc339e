"""Structures in a target's memory, read with checks. Every read may fail, and every number may be wrong."""

from __future__ import annotations

import struct

from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.model.modules import ReadMemory
from pyprof.records import dataclass, field

_CHUNK = 1 << 16
MAX_TEXT = 1 << 12


@dataclass
class TargetStructs:
    """A reader of structures in a target's memory.

    Attributes:
        read: Function that reads the memory.
        arch: The architecture.
        name: Name for messages.
        budget: Number of bytes that may still be read.
        order: Byte order in the notation of struct.
        word: Size of an address in bytes.
    """

    read: ReadMemory
    arch: Arch
    name: str
    budget: int
    order: str = field(init=False)
    word: int = field(init=False)

    def __post_init__(self) -> None:
        self.order = "<" if self.arch.byteorder == "little" else ">"
        self.word = self.arch.word

    def layout(self, fields: str) -> struct.Struct:
        """Return the struct layout of a structure in the target, where "P" is an address-sized word. The caller adds
        padding.
        """
        return struct.Struct(self.order + fields.replace("P", "Q" if self.word == 8 else "I"))

    def read_exactly(self, avma: int, size: int) -> bytes:
        """Return exactly `size` bytes of the target's memory.

        Raises:
            FormatError: The bytes are not readable or exceed the budget. The error's offset is the address.
        """
        if not 0 <= avma <= self.arch.mask - size:
            raise FormatError(self.name, avma, f"points to {size} bytes at {avma:#x}")
        if size > self.budget:
            raise FormatError(self.name, avma, f"{size} bytes are more than is read of all together")
        data = bytearray()
        while len(data) < size:
            chunk = self.read(avma + len(data), min(size - len(data), _CHUNK))
            if not chunk:
                raise FormatError(self.name, avma, f"{size} bytes are not readable")
            data += chunk
        self.budget -= size
        return bytes(data)

    def read_available(self, avma: int, size: int) -> bytes:
        """Return the readable part of `size` bytes at an address of the target.

        The target may have chosen any address: the result is b"" if it is invalid.
        """
        return self.read(avma, size) if 0 <= avma <= self.arch.mask - size else b""

    def unpack(self, avma: int, layout: struct.Struct) -> tuple[int, ...]:
        """Unpack a structure in the target's memory.

        Raises:
            FormatError: The structure is not readable.
        """
        return layout.unpack(self.read_exactly(avma, layout.size))

    def read_c_string(self, avma: int) -> str:
        """Return the NUL-terminated string at an address of the target, "" if there is none.

        Unreadable text is no error, because it only costs a name.
        """
        found = bytearray()
        while avma and len(found) < MAX_TEXT and b"\0" not in found:
            chunk = self.read_available(avma + len(found), 256 - (avma + len(found)) % 256)
            if not chunk:
                break
            found += chunk
        return bytes(found[:MAX_TEXT]).partition(b"\0")[0].decode("utf-8", "backslashreplace")
