"""The target's memory in words. What cannot be read is Unreadable: the caller knows what it was for."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pyprof.model.interpreter import Gather, Span
from pyprof.model.modules import ReadMemory

_U64 = struct.Struct("<Q").unpack
_U32 = struct.Struct("<I").unpack
ADDRESSES = 1 << 64
"""What a running target's memory says may lead beyond: a word of all ones, and a field behind it."""


class Unreadable(Exception):
    """Memory that is not there, or no longer what it was. Never leaves this package."""


class Memory:
    """Reads now; what a running target's memory says may be false a moment later."""

    def __init__(self, read: ReadMemory) -> None:
        self._read = read

    def renew(self, read: ReadMemory) -> None:
        """The process has another address space: a reader goes on there."""
        self._read = read

    def some(self, avma: int, size: int) -> bytes:
        """What can be read of it."""
        return self._read(avma, size) if 0 < avma < ADDRESSES else b""

    def bytes(self, avma: int, size: int) -> bytes:
        """Raises Unreadable where it is not all there."""
        data = self.some(avma, size)
        if len(data) != size:
            raise Unreadable(f"{size} bytes at {avma:#x}")
        return data

    def u64(self, avma: int) -> int:
        word: int = _U64(self.bytes(avma, 8))[0]
        return word

    def u32(self, avma: int) -> int:
        word: int = _U32(self.bytes(avma, 4))[0]
        return word

    def i32(self, avma: int) -> int:
        return int.from_bytes(self.bytes(avma, 4), "little", signed=True)

    def words(self, avma: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", self.bytes(avma, 8 * count))

    def text(self, avma: int, most: int = 256) -> str:
        """A C string."""
        data = self._read(avma, most) if avma > 0 else b""
        if not data:
            raise Unreadable(f"text at {avma:#x}")
        return data.split(b"\0", 1)[0].decode("utf-8", "replace")


class Text(NamedTuple):
    """A piece of memory as it was."""

    avma: int
    data: bytes


class CopiedMemory(Memory):
    """A process's memory, of which some was copied when it was sampled: that counts, and may be gone by now."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(self._now)
        self._memory = memory
        self._copied: Sequence[Text] = ()

    def prefer(self, texts: Sequence[Text]) -> None:
        """What counts from now on; a few."""
        self._copied = texts

    def _now(self, avma: int, size: int) -> bytes:
        for start, there in self._copied:
            data = there[avma - start : avma - start + size] if start <= avma else b""
            if len(data) == size:
                return data
        return self._memory.some(avma, size)


def gather_now(memory: Memory) -> Gather:
    """A model.interpreter.Gather for a process that nobody stops."""

    def gather(spans: Sequence[Span]) -> memoryview:
        data = b""
        for avma, size in spans:
            try:
                data += memory.bytes(avma, size)
            except Unreadable:
                break
        return memoryview(data)

    return gather
