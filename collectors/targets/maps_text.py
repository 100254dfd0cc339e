"""What /proc/PID/maps of a process said last: which executable mappings, and which writable memory there is."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from functools import lru_cache
from itertools import chain

from pyprof.collectors.linux.map_query import executable_vmas
from pyprof.collectors.linux.procfs import parse_maps
from pyprof.records import dataclass

_EXECUTABLE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ [r-][w-]x[sp] .*$", re.MULTILINE)
_WRITABLE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw[x-][sp] [0-9a-f]+ 00:00 0(?: |$)", re.MULTILINE)

_SHORT = 1 << 16
_parsed = lru_cache(8)(parse_maps)
"""A process that was forked has the text of its parent, and of its siblings."""


@dataclass(frozen=True, slots=True)
class StackMapping:
    """A range of readable, writable memory without a gap: where a stack lives."""

    start: int
    end: int

    def __contains__(self, avma: int) -> bool:
        return self.start <= avma < self.end


class MapsText:
    """text: as it was read. mappings: all of them, as of the last change of executable ones. vmas: the executable ones,
    as the kernel answers questions about them; packed_vmas: the same, six words each.
    """

    def __init__(self, text: bytes) -> None:
        self._executable: tuple[bytes, ...] = ()
        self.take(text, changed=True)

    def take(self, text: bytes, changed: bool = False) -> bool:
        """What was read now. changed: the executable mappings are others, though the text may be the same. Result: are
        they?
        """
        self.text = text
        self._starts, self._ends = _writable_regions(text)
        executable = tuple(_EXECUTABLE.findall(text))
        changed = changed or executable != self._executable
        if changed:
            self._executable = executable
            self.mappings = _parsed(text) if len(text) <= _SHORT else parse_maps(text)
            self.vmas = executable_vmas(self.mappings)
            self.known_vmas = frozenset(self.vmas)
            self.packed_vmas = array("Q", chain.from_iterable(self.vmas))
        return changed

    def region_at(self, avma: int) -> StackMapping | None:
        """The writable memory around an address."""
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
