"""Access to interpreter frames that machine code has read in a stop."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pyprof.collectors.native.code import EXTRAS_SIZE
from pyprof.model.interpreter import FramesAhead, Gather, Span
from pyprof.records import dataclass

_EXTRA = struct.Struct("=3Q")
_COUNT = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class FramesRead:
    """The plan of what to read, and a function that returns what was read."""

    plan: FramesAhead
    gather: Gather


class StopReads:
    """A model.interpreter.Gather that returns what was read in a stop.

    The first call returns everything that the plan reads at once. Later calls return what the chain of frames led to.
    What was not read is missing.
    """

    def __init__(self, memory: memoryview, begin: int, size: int) -> None:
        """Parse the results of machine code.

        Args:
            memory: Its buffer.
            begin: Start of the results.
            size: Number of bytes that the plan reads at once.
        """
        self._memory = memory
        self._begin = begin
        self._first: memoryview | None = memory[begin : begin + size]
        at = begin + size
        (count,) = _COUNT.unpack_from(memory, at)
        rows = memory[at + _COUNT.size : at + _COUNT.size + count * _EXTRA.size]
        self._extras = {avma: (offset, there) for avma, there, offset in _EXTRA.iter_unpack(rows)}
        assert at + EXTRAS_SIZE <= len(memory)

    def __call__(self, spans: Sequence[Span]) -> memoryview:
        first, self._first = self._first, None
        if first is not None:
            return first
        parts = []
        for avma, size in spans:
            offset, there = self._extras.get(avma, (0, 0))
            if there < size:
                break
            begin = self._begin + offset
            parts.append(self._memory[begin : begin + size])
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
