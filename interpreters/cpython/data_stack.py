"""How long a thread's data stack is beyond what was copied of it: its chunks' heads, read while the thread runs.

Source: Include/internal/pycore_pystate.h, _PyStackChunk: previous, size in bytes, top in words.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyprof.interpreters.cpython.memory import Memory, Unreadable

_MOST_CHUNKS = 1 << 16
_HEAD_WORDS = 3


@dataclass
class ChunkSizes:
    """Of one process. A chunk that has been seen is not read again: what is said of a stack that has shrunk and grown
    since is what was there before.
    """

    memory: Memory
    _known: dict[int, int] = field(default_factory=dict)

    def bytes_from(self, chunk: int) -> int:
        """Bytes in use in this chunk and those outside it, as far as they can be read."""
        if len(self._known) > _MOST_CHUNKS:
            self._known.clear()
        new: dict[int, int] = {}
        while chunk and chunk not in self._known and chunk not in new and len(new) < _MOST_CHUNKS:
            try:
                previous, size, top = self.memory.words(chunk, _HEAD_WORDS)
            except Unreadable:
                break
            new[chunk] = min(8 * (_HEAD_WORDS + top), size)
            chunk = previous
        total = self._known.get(chunk, 0)
        for at in reversed(new):
            total = self._known[at] = total + new[at]
        return total
