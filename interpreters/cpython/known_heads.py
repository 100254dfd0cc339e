"""Which code stood at an address: for samples of frames whose code was not in memory.

It is known where the same code was there before the sample and is there now. Heads are folded, see rows.fold(). Samples
come in rounds: all of one are later than those of the rounds before. What a sample had counts for the rounds after its
own. What was read while a round was decoded does for those after the next one, whose samples may be older.
"""

from __future__ import annotations

_MOST = 1 << 14


class KnownHeads:
    """By address, of one process."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._met: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._read_late: dict[int, int] = {}

    def met(self, code: int, head: int) -> None:
        """A sample of this round had it."""
        self._met[code] = head

    def is_same(self, code: int, head: int) -> bool:
        """head: as it is now. Was it so before this round's samples?"""
        self._read[code] = head
        return self._before.get(code) == head

    def done(self) -> None:
        """Another round begins."""
        if len(self._before) > _MOST:
            self._before.clear()
        self._before |= self._read_late | self._met
        self._read_late, self._read, self._met = self._read, {}, {}
