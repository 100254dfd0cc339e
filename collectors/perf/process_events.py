"""Forks, execs and new file mappings of a recording's processes, read from the rings before their records are consumed.

The rings may also hold records of untracked processes. Nothing is consumed here: the next batch finds all records.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyprof.collectors.perf.records import (
    COMM,
    FORK,
    MISC_COMM_EXEC,
    MMAP2,
    Scan,
    mapping_process,
    parse_comm,
    parse_task,
)
from pyprof.collectors.perf.ring import Ring, Rings

_MAX_RECORDS = 20_000
"""Maximum number of records of one perf ring that one call reads."""
_BODY = 1 << 13
_GENERATIONS = 16
_COMING_NS = 10_000_000_000
"""Maximum time in nanoseconds for which a record waits in perf's rings."""
_WRITTEN_NS = 10_000_000
"""Maximum delay in nanoseconds between a perf record's time and its appearance in the ring."""


class ProcessEvents:
    """A reader of perf's rings that reports processes with new code.

    Args:
        rings: The rings.
        sampled: Returns True for a process of the recording.
        children: True if forked processes belong to it too.
        executed: Called with the pid and the new name of each process of the recording that called exec.
    """

    def __init__(
        self, rings: Rings, sampled: Callable[[int], bool], children: bool, executed: Callable[[int, str], None]
    ) -> None:
        self._rings = rings
        self._sampled = sampled
        self._children = children
        self._executed = executed
        self._programs: dict[int, str] = {}
        self._read: dict[int, int] = {}
        self._looked_ns = 0
        self._coming: dict[int, int] = {}

    def take_reported_pids(self) -> set[int]:
        """Return the pids of processes with new code that were reported since the last reading."""
        self._looked_ns = time.monotonic_ns()
        named_pids: set[int] = set()
        born: dict[int, int] = {}
        for cpu, ring in self._rings.rings.items():
            self._read[cpu] = self._walk(ring, max(self._read.get(cpu, 0), ring.tail), named_pids, born)
        return self._ours(named_pids, born)

    def note_scan(self, found: Scan) -> set[int]:
        """Return the pids of processes with new code in the records of one reading. The caller has read all records up
        to a time and then releases them.
        """
        named_pids: set[int] = set()
        born: dict[int, int] = {}
        for record in found.others:
            if record.time_ns > self._looked_ns - _WRITTEN_NS:
                self._note(record.kind, record.misc, record.body, named_pids, born)
        return self._ours(named_pids, born)

    def _ours(self, named_pids: set[int], born: dict[int, int]) -> set[int]:
        now = time.monotonic_ns()
        for _ in range(_GENERATIONS):
            fresh = {
                pid for pid, parent in born.items() if self._children and self.is_recorded(parent)
            } - self._coming.keys()
            if not fresh:
                break
            named_pids |= fresh
            self._coming |= dict.fromkeys(fresh, now)
        ours = {pid for pid in named_pids if self.is_recorded(pid)}
        programs, self._programs = self._programs, {}
        for pid in programs.keys() & ours:
            self._executed(pid, programs[pid])
        self._coming = {pid: at for pid, at in self._coming.items() if now < at + _COMING_NS and not self._sampled(pid)}
        return ours

    def is_recorded(self, pid: int) -> bool:
        """Return True if a process belongs to the recording, or will belong to it when its fork record is consumed."""
        return pid in self._coming or self._sampled(pid)

    def _walk(self, ring: Ring, position: int, named_pids: set[int], born: dict[int, int]) -> int:
        """Read new records of a perf ring and return the position after the last one."""
        head, words = ring.head, self._rings.words
        for _ in range(_MAX_RECORDS):
            if position >= head:
                break
            word = ring.first + (position & (ring.size - 1)) // 8
            header = int(words[word])
            kind, misc, size = header & 0xFFFF_FFFF, header >> 32 & 0xFFFF, header >> 48
            if size < 32 or size & 7 or size > head - position:
                return head
            if kind in (COMM, FORK, MMAP2) and size <= _BODY:
                ring.make_contiguous(position & (ring.size - 1), size)
                if kind != MMAP2 or int(words[word + 1]) & 0xFFFF_FFFF not in named_pids:
                    self._note(kind, misc, words[word + 1 : word + size // 8 - 3].tobytes(), named_pids, born)
            position += size
        return position

    def _note(self, kind: int, misc: int, body: bytes, named_pids: set[int], born: dict[int, int]) -> None:
        if kind == COMM and misc & MISC_COMM_EXEC and (named := parse_comm(body)) is not None:
            named_pids.add(named[0])
            self._programs[named[0]] = named[2]
        elif kind == MMAP2 and (pid := mapping_process(body)) is not None:
            named_pids.add(pid)
        elif kind == FORK and (ids := parse_task(body)) is not None and ids[0] != ids[1]:
            born[ids[0]] = ids[1]
