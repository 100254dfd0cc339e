"""The segments in a spool, and those to drop. This module decides and touches no file.

A segment may be in several places at once, as hard links: in the spool itself ("") and in queues. It is one segment of
one size, and is dropped from all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import IntEnum

from pyprof.agent.segment_names import SegmentName
from pyprof.records import dataclass, field


class Excess(IntEnum):
    """The limit of the spool that its segments exceed."""

    AGE = 0
    FILES = 1
    BYTES = 2


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of all segments in a spool together; age_s counts from a window's end."""

    most_bytes: int = 1 << 30
    most_files: int = 100_000
    age_s: float = 14 * 86_400.0


@dataclass(slots=True)
class StoredSegment:
    """A segment of `size` bytes in the spool; places are "" or folders of queues."""

    size: int
    places: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Place:
    """The queue of a sink in the spool.

    Attributes:
        names: Names of the segments.
        bytes: Total size of the segments.
        heap: The segments by age, with some that are gone.
    """

    names: dict[SegmentName, None] = field(default_factory=dict)
    bytes: int = 0
    heap: list[tuple[int, str, SegmentName]] = field(default_factory=list)

    def first(self) -> SegmentName | None:
        while self.heap and self.heap[0][2] not in self.names:
            heapq.heappop(self.heap)
        return self.heap[0][2] if self.heap else None

    @property
    def oldest_ns(self) -> int:
        return first.end_ns if (first := self.first()) is not None else 0


class Inventory:
    def __init__(self) -> None:
        self.bytes = 0
        self._places: dict[str, Place] = {}
        self._kept: dict[SegmentName, StoredSegment] = {}
        self._oldest: list[tuple[int, str, SegmentName]] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add_segment(self, name: SegmentName, size: int, place: str = "") -> None:
        known = self._kept.get(name)
        if known is None:
            known = self._kept[name] = StoredSegment(size)
            self.bytes += size
            heapq.heappush(self._oldest, (name.end_ns, name.key, name))
        at = self.place(place)
        if place not in known.places:
            at.names[name] = None
            at.bytes += known.size
            if place:
                heapq.heappush(at.heap, (name.end_ns, name.key, name))
        known.places.add(place)

    def place(self, place: str) -> Place:
        return self._places.setdefault(place, Place())

    def all(self) -> Iterator[SegmentName]:
        return iter(self._kept)

    def places(self, name: SegmentName) -> set[str]:
        """Return the places of a segment in the spool ("" or queues), none if it is not known."""
        return set(self._kept[name].places) if name in self._kept else set()

    def left(self, name: SegmentName, place: str) -> None:
        """Record that a segment was removed from a place in the spool. A segment without places is forgotten."""
        known = self._kept.get(name)
        if known is not None and place in known.places:
            known.places.discard(place)
            at = self.place(place)
            del at.names[name]
            at.bytes -= known.size
            if not known.places:
                self.bytes -= known.size
                del self._kept[name]

    def oldest(self) -> SegmentName | None:
        while self._oldest and self._oldest[0][2] not in self._kept:
            heapq.heappop(self._oldest)
        return self._oldest[0][2] if self._oldest else None

    def excess(self, caps: Caps, now_ns: int) -> tuple[SegmentName, Excess] | None:
        """Return the oldest segment of the spool and why it must be dropped, or None."""
        oldest = self.oldest()
        if oldest is None:
            return None
        if oldest.end_ns < now_ns - caps.age_s * 1e9:
            return oldest, Excess.AGE
        if len(self) > caps.most_files:
            return oldest, Excess.FILES
        return (oldest, Excess.BYTES) if self.bytes > caps.most_bytes else None

    def queued(self, place: str) -> Iterator[SegmentName]:
        """Return the segments of a sink's queue, oldest first."""
        return iter(sorted(self.place(place).names, key=lambda name: (name.end_ns, name.key)))
