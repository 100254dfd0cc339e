"""Reads of the target's memory in words. Unreadable memory raises Unreadable, because the caller knows its purpose."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pyprof.model.interpreter_state import Gather, Span
from pyprof.model.modules import ReadMemory

_U64 = struct.Struct("<Q").unpack
_U32 = struct.Struct("<I").unpack
ADDRESSES = 1 << 64
"""End of the address space. An address that a running target's memory contains, plus an offset, may lie beyond it."""


class Unreadable(Exception):
    """Memory that is not there or no longer has its earlier contents. This exception never leaves the package."""


class Memory:
    """Reader of a process's current memory. The process runs, so the contents may change a moment later."""

    def __init__(self, read: ReadMemory) -> None:
        self._read = read

    def change_space(self, read: ReadMemory) -> None:
        """Read from another address space of the process from now on."""
        self._read = read

    def read_available(self, avma: int, size: int) -> bytes:
        """Return as much of a range of the target's memory as can be read."""
        return self._read(avma, size) if 0 < avma < ADDRESSES else b""

    def read_memory(self, avma: int, size: int) -> bytes:
        """Return all bytes of a range of the target's memory.

        Raises:
            Unreadable: A part of the range is missing.
        """
        data = self.read_available(avma, size)
        if len(data) != size:
            raise Unreadable(f"{size} bytes at {avma:#x}")
        return data

    def read_u64(self, avma: int) -> int:
        word: int = _U64(self.read_memory(avma, 8))[0]
        return word

    def read_u32(self, avma: int) -> int:
        word: int = _U32(self.read_memory(avma, 4))[0]
        return word

    def read_i32(self, avma: int) -> int:
        return int.from_bytes(self.read_memory(avma, 4), "little", signed=True)

    def read_words(self, avma: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", self.read_memory(avma, 8 * count))

    def read_c_string(self, avma: int, max_bytes: int = 256) -> str:
        """Read a NUL-terminated string from the target's memory."""
        data = self._read(avma, max_bytes) if avma > 0 else b""
        if not data:
            raise Unreadable(f"text at {avma:#x}")
        return data.split(b"\0", 1)[0].decode("utf-8", "replace")


class Text(NamedTuple):
    """A copied piece of a process's memory, as it was at the time of the sample."""

    avma: int
    data: bytes


class CopiedMemory(Memory):
    """A process's memory, in which copies from the time of a sample take precedence over what is there now."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(self._now)
        self._memory = memory
        self._copied: Sequence[Text] = ()

    def prefer_texts(self, texts: Sequence[Text]) -> None:
        """Set the copies of memory that take precedence over current memory from now on; they must be few."""
        self._copied = texts

    def _now(self, avma: int, size: int) -> bytes:
        for start, there in self._copied:
            data = there[avma - start : avma - start + size] if start <= avma else b""
            if len(data) == size:
                return data
        return self._memory.read_available(avma, size)


def make_gather(memory: Memory) -> Gather:
    """Return a function (model.interpreter_state.Gather) that reads spans of a process that is not stopped."""

    def gather(spans: Sequence[Span]) -> memoryview:
        data = b""
        for avma, size in spans:
            try:
                data += memory.read_memory(avma, size)
            except Unreadable:
                break
        return memoryview(data)

    return gather
