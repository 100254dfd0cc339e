"""A thread's data stack: copies of its chunks during a stop, and the size of the part that was not copied.

Source: Include/internal/pycore_pystate.h, _PyStackChunk: previous, size in bytes, top in words.
"""

from __future__ import annotations

from pyprof.interpreters.cpython.layout import Layout
from pyprof.interpreters.cpython.memory import Memory, Unreadable
from pyprof.interpreters.cpython.stop_snapshot import Copied, ReadHints, view_words
from pyprof.model.interpreter_state import Gather
from pyprof.records import dataclass, field

MAX_CHUNKS = 64
"""Minimum for the number of chunks of a thread's data stack that are copied; a larger copy limit raises it."""
ROOM = 2048
"""Number of bytes that are copied beyond the top of the newest chunk of a data stack, which grows from sample to
sample.
"""
_MIN_CHUNK, _USUAL_CHUNK = 1 << 13, 1 << 14
_CHUNK_HEAD = 24
_FRESH_CHUNKS = 96
"""Maximum number of data stack chunks that the last sample did not have and that are read one by one in a stop."""
_MAX_KNOWN = 1 << 16
_HEAD_WORDS = 3


class ChunkCopier:
    """A copier of CPython data stacks in one layout; it copies whole chunks up to most_stack bytes in all."""

    def __init__(self, layout: Layout, most_stack: int) -> None:
        self._chunk = layout.thread.chunk >> 3
        self._most_stack = most_stack
        self._most_chunks = max(MAX_CHUNKS, most_stack // _MIN_CHUNK)

    def copy_chunks(self, copied: Copied, habits: ReadHints, got: dict[int, memoryview], gather: Gather) -> None:
        """Copy the chunks of a thread's data stack into copied.regions, newest first.

        Args:
            got: What the thread's last sample needed, by address.
        """
        at, top = (copied.head[self._chunk + n] for n in (0, 1))
        found: list[tuple[int, int, int]] = []
        habits.chunks, habits.spans = found, []
        total = fresh = 0
        while at and len(found) < self._most_chunks and total < self._most_stack:
            copied.beyond = at
            part = got.get(at)
            if part is None or len(part) < _CHUNK_HEAD // 8:
                fresh += 1
                part = view_words(gather([(at, _USUAL_CHUNK)]))
                if fresh > _FRESH_CHUNKS or len(part) < _CHUNK_HEAD // 8:
                    return
            size = part[1] & ~7
            used = _CHUNK_HEAD + 8 * part[2] if found else top - at
            used = min(max(used, _CHUNK_HEAD), size, self._most_stack) & ~7
            if found and total + used > self._most_stack:
                break
            if used > 8 * len(part):
                part = view_words(gather([(at, used)]))
            part = part[: used + (0 if found else ROOM) >> 3]
            if not len(part):
                return
            copied.regions.insert(len(found), (at, at + 8 * len(part), part))
            found.append((at, used, size))
            total += used
            at = part[0]
        copied.beyond = at


@dataclass
class ChunkSizes:
    """Sizes of the CPython data stacks of one process, read while it runs.

    A known chunk is not read again, so a stack that has shrunk and grown may be reported with its earlier size.
    """

    memory: Memory
    _known: dict[int, int] = field(default_factory=dict)

    def count_bytes_from(self, chunk: int) -> int:
        """Return the bytes in use in this chunk of a data stack and all chunks outside it, as far as they can be
        read.
        """
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        new: dict[int, int] = {}
        while chunk and chunk not in self._known and chunk not in new and len(new) < _MAX_KNOWN:
            try:
                previous, size, top = self.memory.read_words(chunk, _HEAD_WORDS)
            except Unreadable:
                break
            new[chunk] = min(8 * (_HEAD_WORDS + top), size)
            chunk = previous
        total = self._known.get(chunk, 0)
        for at in reversed(new):
            total = self._known[at] = total + new[at]
        return total
