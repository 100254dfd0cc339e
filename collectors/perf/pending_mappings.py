"""Changes of a process's mappings that are not applied yet: new mappings, execs, and readings of its maps."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from pyprof.model.modules import Mapping, ProgramImage
from pyprof.records import dataclass, field

Mappings = tuple[Mapping, ...]
Change = Mapping | Mappings | None
"""Change of a process's mappings: a new mapping, all mappings of a reading of /proc/PID/maps, or None for an exec."""

_MAX_CHANGES, _MAX_WORK = 1 << 16, 1 << 26
"""Limits for applying new mappings of a process one by one: their number, and the number of changes times that of
existing mappings.

Beyond them, the process's maps are read afterwards instead.
"""
_MAX_SEEN = 4096


@dataclass(eq=False)
class PendingChanges:
    """Changes of a process's mappings in order of time; `skipped` is True if more new mappings came than are kept."""

    skipped: bool = False
    _changes: list[tuple[int, int, Change]] = field(default_factory=list)
    _order: int = 0

    def __bool__(self) -> bool:
        return bool(self._changes)

    def __iter__(self) -> Iterator[tuple[int, Change]]:
        return ((at, change) for at, _, change in self._changes)

    def has_room(self, mapped: int) -> bool:
        """Return True if there is room for another new mapping to apply, else note that one was skipped.

        Args:
            mapped: Number of existing mappings.
        """
        self.skipped = self.skipped or len(self._changes) >= min(_MAX_CHANGES, _MAX_WORK // (mapped + 1))
        return not self.skipped

    def add_change(self, time_ns: int, change: Change) -> None:
        self._order += 1
        insort(self._changes, (time_ns, self._order, change), key=lambda noted: noted[:2])


@dataclass(eq=False)
class CodePlaces:
    """Addresses at which each file's code was mapped in a process, by inode."""

    _seen: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    _count: int = 0

    def add_mapping(self, mapping: Mapping, image: ProgramImage) -> None:
        """Note where a file's code was mapped. If two files were mapped at one address, mark the range of the image as
        contested.

        Memory that is read now may be that of either file. A place is noted once, because a program may map a thousand
        files there.
        """
        place = mapping.start, mapping.end
        if not mapping.inode or place in self._seen.get(mapping.inode, ()) or self._count == _MAX_SEEN:
            return
        for start, end in (each for inode, seen in self._seen.items() if inode != mapping.inode for each in seen):
            if start < mapping.end and mapping.start < end:
                contested = min(start, mapping.start), max(end, mapping.end)
                if contested not in image.contested:
                    image.contested.append(contested)
        self._seen.setdefault(mapping.inode, set()).add(place)
        self._count += 1
