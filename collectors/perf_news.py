"""Births, execs and newly mapped files, read from the rings while their records wait there for the next batch.

Nothing is given back: whoever takes the records finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collectors.perf_records import COMM, FORK, MISC_COMM_EXEC, MMAP2, parse_comm, parse_mmap2, parse_task
from pyprof.collectors.perf_ring import Ring, Rings

_MOST_RECORDS = 20_000
"""Of one ring, in one look."""
_BODY = 1 << 13


class News:
    """sampled: is it a process of the recording? children: are those that it forks?"""

    def __init__(self, rings: Rings, sampled: Callable[[int], bool], children: bool) -> None:
        self._rings = rings
        self._sampled = sampled
        self._children = children
        self._read: dict[int, int] = {}
        self._coming: set[int] = set()

    def look(self) -> set[int]:
        """Pids of which something was told since the last look."""
        told: set[int] = set()
        born: dict[int, int] = {}
        for cpu, ring in self._rings.rings.items():
            self._read[cpu] = self._walk(ring, max(self._read.get(cpu, 0), ring.tail), told, born)
        for pid in sorted(born):
            if self._children and self._knows(born[pid]):
                told.add(pid)
                self._coming.add(pid)
        self._coming = {pid for pid in self._coming if not self._sampled(pid)}
        return {pid for pid in told if self._knows(pid) or pid in born}

    def _knows(self, pid: int) -> bool:
        return pid in self._coming or self._sampled(pid)

    def _walk(self, ring: Ring, position: int, told: set[int], born: dict[int, int]) -> int:
        """Up to where it was read."""
        head, words = ring.head, self._rings.words
        for _ in range(_MOST_RECORDS):
            if position >= head:
                break
            word = ring.first + (position & (ring.size - 1)) // 8
            header = int(words[word])
            kind, misc, size = header & 0xFFFF_FFFF, header >> 32 & 0xFFFF, header >> 48
            if size < 32 or size & 7 or size > head - position:
                return head
            if kind in (COMM, FORK, MMAP2) and size <= _BODY:
                ring.mend(position & (ring.size - 1), size)
                self._told(kind, misc, words[word + 1 : word + size // 8 - 3].tobytes(), told, born)
            position += size
        return position

    def _told(self, kind: int, misc: int, body: bytes, told: set[int], born: dict[int, int]) -> None:
        if kind == COMM and misc & MISC_COMM_EXEC and (named := parse_comm(body)) is not None:
            told.add(named[0])
        elif kind == MMAP2 and (mapped := parse_mmap2(body)) is not None and mapped.mapping.inode:
            told.add(mapped.pid)
        elif kind == FORK and (ids := parse_task(body)) is not None and ids[0] != ids[1]:
            born[ids[0]] = ids[1]
