"""History of the code object at each address, for frames whose code object was not in memory when they were sampled.

The code object is known if the same one was at the address before the sample and is there now. Heads are hashes, see
rows.hash_words(). Samples come in rounds: all samples of a round are later than those of earlier rounds. A head that a
sample contained counts for later rounds. A head that was read while a round was decoded counts from the next round but
one, because the samples of the next round may be older than the read.
"""

from __future__ import annotations

_MAX_HEADS = 1 << 14


class CodeHistory:
    """History of the heads of code objects of one process, by address. A head is the part that each sample copies."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._met: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._read_late: dict[int, int] = {}

    def record_head(self, code: int, head: int) -> None:
        """Record that a sample of this round contained this head of the code object at an address."""
        self._met[code] = head

    def has_same_head(self, code: int, head: int) -> bool:
        """Return True if the head of the code object that is there now was there before this round's samples, and
        record it.
        """
        self._read[code] = head
        return self._before.get(code) == head

    def begin_round(self) -> None:
        """Begin the next round of samples in the history of code objects, and forget older ones if there are many."""
        if len(self._before) > _MAX_HEADS:
            self._before.clear()
        self._before |= self._read_late | self._met
        self._read_late, self._read, self._met = self._read, {}, {}
