"""The latest contents of /proc/PID/maps: the executable mappings, and the writable memory."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from functools import lru_cache
from itertools import chain

from pyprof.collectors.linux.map_query import pack_executable_vmas
from pyprof.collectors.linux.procfs import parse_maps
from pyprof.records import dataclass

_EXECUTABLE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ [r-][w-]x[sp] .*$", re.MULTILINE)
_WRITABLE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw[x-][sp] [0-9a-f]+ 00:00 0(?: |$)", re.MULTILINE)

_SHORT = 1 << 16
_parsed = lru_cache(8)(parse_maps)
"""A cached parse_maps(), because a forked process has the same text as its parent and siblings."""


@dataclass(frozen=True, slots=True)
class StackMapping:
    """A range of readable, writable memory without a gap, which may contain a stack."""

    start: int
    end: int

    def __contains__(self, avma: int) -> bool:
        return self.start <= avma < self.end


class MapsText:
    """One reading of /proc/PID/maps.

    Attributes:
        text: The text.
        mappings: All mappings as of the last change of executable ones.
        vmas: The executable mappings in the form of the kernel's answers to queries.
        expected_vmas: The executable mappings as a set.
        packed_vmas: The executable mappings as an array of six words each.
    """

    def __init__(self, text: bytes) -> None:
        self._executable: tuple[bytes, ...] = ()
        self.store_text(text, changed=True)

    def store_text(self, text: bytes, changed: bool = False) -> bool:
        """Store a new reading of a process's maps, and return True if the executable mappings have changed.

        Args:
            text: The text.
            changed: True if they have changed even if the text is the same.
        """
        self.text = text
        self._starts, self._ends = _writable_regions(text)
        executable = tuple(_EXECUTABLE.findall(text))
        changed = changed or executable != self._executable
        if changed:
            self._executable = executable
            self.mappings = _parsed(text) if len(text) <= _SHORT else parse_maps(text)
            self.vmas = pack_executable_vmas(self.mappings)
            self.expected_vmas = frozenset(self.vmas)
            self.packed_vmas = array("Q", chain.from_iterable(self.vmas))
        return changed

    def find_region(self, avma: int) -> StackMapping | None:
        """Return the writable memory of the process around an address."""
        at = bisect_right(self._starts, avma) - 1
        return StackMapping(self._starts[at], self._ends[at]) if at >= 0 and avma < self._ends[at] else None


def _writable_regions(text: bytes) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    for low, high in _WRITABLE.findall(text):
        start, end = int(low, 16), int(high, 16)
        if ends and ends[-1] == start:
            ends[-1] = end
        elif not ends or ends[-1] < start:
            starts.append(start)
            ends.append(end)
    return starts, ends
