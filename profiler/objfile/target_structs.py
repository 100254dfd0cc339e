"""Structures in a target's memory, read piece by piece. Every read may fail, every number may lie."""

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
    """name: for messages. budget: most bytes that are read in all."""

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
        """A structure of the target; "P" is an address-sized word. Alignment is the caller's business."""
        return struct.Struct(self.order + fields.replace("P", "Q" if self.word == 8 else "I"))

    def exactly(self, avma: int, size: int) -> bytes:
        """Exactly size bytes. Raises FormatError, whose offset is the avma."""
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

    def peek(self, avma: int, size: int) -> bytes:
        """What is readable of size bytes at an address that the target made up; b"" where that is none."""
        return self.read(avma, size) if 0 <= avma <= self.arch.mask - size else b""

    def unpack(self, avma: int, layout: struct.Struct) -> tuple[int, ...]:
        """Raises FormatError."""
        return layout.unpack(self.exactly(avma, layout.size))

    def text(self, avma: int) -> str:
        """The string at avma, "" where there is none: what is not readable costs a name, nothing else."""
        found = bytearray()
        while avma and len(found) < MAX_TEXT and b"\0" not in found:
            chunk = self.peek(avma + len(found), 256 - (avma + len(found)) % 256)
            if not chunk:
                break
            found += chunk
        return bytes(found[:MAX_TEXT]).partition(b"\0")[0].decode("utf-8", "backslashreplace")
