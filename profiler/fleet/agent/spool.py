"""The agent's spool: a directory of segments (files with a window of a service), and the choice of those to drop.

A segment is written under a temporary name, synced, linked into the queue of each sink, and then renamed to its final
name; at last the folders are synced. So a name stands for a complete file, and what store_window() has accepted is
durable. The limits of bytes, files and age are enforced by dropping the oldest segments; each drop is counted. Readers
need no lock: they find a file or they do not.

Checkpoints of an unfinished window are files in a separate folder. When the spool is opened, those of a killed agent
become segments, unless the window's own segments were written.

If the disk is full, the oldest segments are dropped first. Segments that still find no room wait in memory until the
next window is stored.

The Inventory decides which segments are dropped, and touches no file. A segment may be in several places at once, as
hard links: in the spool itself ("") and in queues. It is one segment of one size, and is dropped from all of them.
"""

from __future__ import annotations

import errno
import heapq
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum

from pyprof.fleet.agent.last_minutes import NOT_KEPT
from pyprof.fleet.file_system_calls import Disk, has_room
from pyprof.fleet.wire.segment_names import SegmentName, is_day, is_part
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.problem_counters import Diagnostics


class Excess(IntEnum):
    """The limit that makes the spool drop a segment: age, number of files, or total size."""

    AGE = 0
    FILES = 1
    BYTES = 2


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits for all segments in a spool together; age_s counts from the end of a segment's window."""

    most_bytes: int = 1 << 30
    most_files: int = 100_000
    age_s: float = 14 * 86_400.0


@dataclass(slots=True)
class StoredSegment:
    """A segment of `size` bytes in the spool. `places` are the folders that have it: "" for the spool's own, and those
    of queues.
    """

    size: int
    places: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Place:
    """The segments that are in one folder of the spool: in the spool's own, or in the queue of a sink that has not
    accepted them.

    Attributes:
        names: Names of the segments.
        bytes: Total size of the segments.
        heap: Heap of the segments by age. It may still contain segments that are gone.
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
        """Return the places in which the spool has a segment: "" for the spool itself, otherwise folders of queues. The
        set is empty for an unknown segment.
        """
        return set(self._kept[name].places) if name in self._kept else set()

    def left(self, name: SegmentName, place: str) -> None:
        """Record that a segment was removed from one place: the spool or a queue. A segment that is in no place any
        more is forgotten.
        """
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
        """Return the oldest segment of the spool and the limit because of which it must be dropped; None if no limit is
        exceeded.
        """
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


OLD = "segment_dropped_max_age"
MANY = "segment_dropped_max_files"
LARGE = "segment_dropped_max_bytes"
FULL = "segment_dropped_disk_full"
NOT_WRITTEN = "segment_not_written"
STRANGE = "spool_file_not_segment"
REFUSED = "refused_segment_dropped"
REASONS = (OLD, MANY, LARGE, FULL, NOT_WRITTEN, NOT_KEPT, STRANGE, REFUSED)
"""Names of the counters of dropped data. Metrics use them as reasons."""
QUEUE, ASIDE, SO_FAR = "queue", "refused", "sofar"
_SAVED = re.compile(r"\d{19}-([0-9a-f]{32})")
MAX_REFUSED = 100
"""Maximum number of segments refused by receivers that the spool keeps for each reason."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk."""
PROBE_BYTES = 1 << 16
"""Size in bytes of the file that the agent writes at its start to see whether the disk is full: about that of a
segment.
"""
_TRIES = 4
"""Number of attempts to make room on the disk for one segment."""


@dataclass(frozen=True, slots=True)
class SpoolSegment:
    name: SegmentName
    data: bytes


Restore = Callable[[Sequence[str], str, Callable[[], None]], Sequence[SpoolSegment]]
"""Function that turns checkpoints into segments. It receives the paths of a window's checkpoints in order, the window's
key, and a function that it calls for each broken checkpoint.
"""


class Spool:
    """The spool of one agent, which holds the lock of the directory (disk.locked). open() must be called first.

    Attributes:
        held: Segments that wait in memory.
        recovered: Number of segments from checkpoints of a killed agent.
        lost: For each sink, the number of segments that were dropped before it had taken them.
        failure: The last error of store_window(), save() or probe() since the last store_window() began, None if there
            was none. store_window() may have succeeded after making room.
    """

    def __init__(
        self,
        root: str,
        caps: Caps,
        diagnostics: Diagnostics,
        disk: Disk | None = None,
        sinks: Sequence[str] = (),
        clock: Callable[[], int] = time.time_ns,
        spare: Callable[[], int] = lambda: 0,
        restore: Restore = lambda paths, window, broken: (),
    ) -> None:
        """Create the spool of an agent in a directory. open() reads the directory.

        Args:
            diagnostics: Counters of dropped data.
            sinks: Names of sinks that get a queue.
            spare: Function that deletes dispensable files, and returns the number of bytes freed.
            restore: Function that makes segments of checkpoints.
        """
        self.inventory = Inventory()
        self.held: tuple[SpoolSegment, ...] = ()
        self.recovered = 0
        self.lost = Counter[str]()
        self.failure: OSError | None = None
        self.root = root
        self._caps = caps
        self._diagnostics = diagnostics
        self._disk = disk or Disk()
        self._queues = [f"{QUEUE}/{sink}" for sink in sinks]
        self._clock = clock
        self._spare, self._restore = spare, restore
        self._refused: dict[str, list[str]] = {}
        self._saved: dict[str, list[str]] = {}
        self._unrecovered: dict[str, list[str]] = {}  # checkpoints that the disk had no room to restore, by window
        self._over: list[str] = []
        self._saved_ns = 0
        self._newest: SegmentName | None = None

    def open(self) -> None:
        """Find the existing segments of the spool by names and sizes, and delete unfinished files.

        Raises:
            OSError: The spool cannot be read.
        """
        self._find_segments()
        self._recover()
        self._find_refused()

    def _find_segments(self) -> None:
        for place in ("", *self._queues):
            for name, size in self._segments(place):
                self.inventory.add_segment(name, size, place)

    def _find_refused(self) -> None:
        for reason in self._disk.list_folder(f"{self.root}/{ASIDE}"):
            folder = f"{ASIDE}/{reason.name}"
            self._refused[reason.name] = sorted(f.name for f in self._disk.list_folder(f"{self.root}/{folder}"))
        self.keep_within()

    def reopen(self) -> None:
        """Find the segments of the spool again after its folder or its files were removed. Removed segments that a sink
        had not accepted count as lost. Segments that wait in memory stay, and so do checkpoints of unfinished windows
        that are still there.

        Raises:
            OSError: The spool cannot be read.
        """
        before, self.inventory = self.inventory, Inventory()
        self._refused.clear()
        for places in (self._saved, self._unrecovered):
            for window, paths in list(places.items()):
                places[window] = [path for path in paths if os.path.exists(path)]
        self._find_segments()
        if not any((self._over, *self._saved.values(), *self._unrecovered.values())):
            self._recover()  # a folder that another agent has left
        self._find_refused()
        for place in self._queues:
            removed = before.place(place).names.keys() - self.inventory.place(place).names.keys()
            if removed:
                self.lost[place.removeprefix(f"{QUEUE}/")] += len(removed)

    def is_removed(self) -> bool:
        """Return True if something else has removed the newest segment of the spool."""
        newest = self._newest
        return (
            newest is not None
            and "" in self.inventory.places(newest)
            and not os.path.exists(self._path("", newest.path))
        )

    def probe(self) -> None:
        """Write and delete a file at the agent's start, so that `failure` states the error if the spool cannot be
        written.
        """
        part = f"{self.root}/{SO_FAR}/.probe.part"  # open() deletes it there if the agent is killed
        try:
            self._disk.make_folder(f"{self.root}/{SO_FAR}")
            self._write_synced(part, bytes(PROBE_BYTES))
        except OSError as error:
            self.failure = error
        self._forget((part,))

    def _segments(self, place: str) -> Iterator[tuple[SegmentName, int]]:
        top = self._path(place, "").rstrip("/")
        for day in [found for found in self._disk.list_folder(top) if found.is_folder and is_day(found.name)]:
            for folder in [found for found in self._disk.list_folder(f"{top}/{day.name}") if found.is_folder]:
                at = f"{top}/{day.name}/{folder.name}"
                for file in list(self._disk.list_folder(at)):
                    name = SegmentName.parse(day.name, folder.name, file.name)
                    if name is not None and not file.is_folder:
                        yield name, file.size
                    elif is_part(file.name) and not file.is_folder:
                        self._disk.unlink(f"{at}/{file.name}")
                    else:
                        self._diagnostics.count(STRANGE)

    def _recover(self) -> None:
        """Turn the checkpoints of earlier windows into segments, for windows of which the spool has no segment."""
        known = {name.key: name for name in self.inventory.all()}
        folder, saved = f"{self.root}/{SO_FAR}", dict[str, list[str]]()
        for name in sorted(found.name for found in self._disk.list_folder(folder)):
            of = _SAVED.fullmatch(name)
            saved.setdefault(of[1] if of else "", []).append(f"{folder}/{name}")
        self._forget(saved.pop("", ()))
        for window, paths in saved.items():
            try:
                self._restore_window(paths, window, known)
                for path in paths:
                    self._disk.unlink(path)
            except OSError:  # the checkpoint waits until there is room
                self._diagnostics.count(NOT_WRITTEN)
                self._unrecovered[window] = paths

    def recover_waiting(self) -> int:
        """Restore the checkpoints for which the disk had no room as segments, and return the number of segments. Do
        nothing while the disk is full.
        """
        before = self.recovered
        if self._unrecovered and has_room(self.root):
            known = {name.key: name for name in self.inventory.all()}
            for window, paths in list(self._unrecovered.items()):
                try:
                    self._restore_window(paths, window, known)
                except OSError:
                    break
                self._forget(self._unrecovered.pop(window))
            self.keep_within()
        return self.recovered - before

    def recover(self, window: str) -> int:
        """Turn the checkpoints of a window whose recording failed into segments, and return the number of segments."""
        before, paths = self.recovered, self._saved.get(window, [])
        try:
            self._restore_window(paths, window, {name.key: name for name in self.inventory.all()})
        except OSError as error:  # the checkpoints wait until there is room
            self.failure = error
            self._unrecovered[window] = self._saved.pop(window, [])
            return 0
        self._forget(self._saved.pop(window, ()))
        return self.recovered - before

    def _restore_window(self, paths: Sequence[str], window: str, known: dict[str, SegmentName]) -> None:
        for segment in self._restore(paths, window, lambda: self._diagnostics.count(STRANGE)):
            whole = known.setdefault(segment.name.key, segment.name)
            there = self.inventory.places(whole)
            if not there:
                self._write(segment)
            elif "" not in there:
                self._link_everywhere(self._path(next(iter(there)), whole.path), whole, len(segment.data))
            self.recovered += "" not in there

    def _link_everywhere(self, source: str, name: SegmentName, size: int) -> None:
        for place in (*self._queues, ""):
            if place not in self.inventory.places(name):
                folder = self._folder(place, name)
                self._disk.link(source, f"{folder}/{name.name}")
                self.inventory.add_segment(name, size, place)
                self._disk.sync_folder(folder)

    def save(self, window: str, end_ns: int, data: bytes) -> bool:
        """Save a checkpoint of an unfinished window in the spool, and return True if that succeeded.

        A checkpoint holds what came after the previous one. A killed agent loses only what came after the last one.

        Args:
            window: Key of the window, 32 hexadecimal digits, as for store_window().
        """
        folder, disk = f"{self.root}/{SO_FAR}", self._disk
        end_ns = self._saved_ns = max(end_ns, self._saved_ns + 1)  # the clock may have been set back
        to, part = f"{folder}/{end_ns:019}-{window}", f"{folder}/.{window}.part"
        try:
            if disk.make_folder(folder):
                disk.sync_folder(self.root)
            self._write_synced(part, data)
            disk.rename(part, to)
            self._saved.setdefault(window, []).append(to)
            disk.sync_folder(folder)
        except OSError as error:
            self.failure = error
            self._forget((part,))
            return False
        return True

    def _forget(self, saved: Iterable[str]) -> None:
        for path in saved:
            with suppress(OSError):
                self._disk.unlink(path)

    def store_window(self, segments: Sequence[SpoolSegment], window: str = "") -> bool:
        """Store the segments of one window, and segments of earlier windows that wait in memory. Return False if some
        wait now or are lost.
        """
        self.failure = None
        waiting, self.held = self.held, ()
        over, self._over = self._over, self._saved.pop(window, [])
        lost = sum(not self._written(segment) for segment in waiting)
        if lost:
            self._diagnostics.count(NOT_WRITTEN, lost)
        self.held = tuple(segment for segment in segments if not self._written(segment))
        self._forget(over)
        if not self.held:
            self._forget(self._over)
            self._over = []
        self.keep_within()
        return not self.held and not lost

    def _written(self, segment: SpoolSegment) -> bool:
        for left in reversed(range(_TRIES)):
            try:
                self._write(segment)
            except OSError as error:
                self.failure = error
                if error.errno not in NO_ROOM or not left or not self._make_room(len(segment.data)):
                    return False
            else:
                return True
        return False

    def _write(self, segment: SpoolSegment) -> None:
        disk, name = self._disk, segment.name
        folder = self._folder("", name)
        part, to = f"{folder}/.{name.name}.part", f"{folder}/{name.name}"
        try:
            self._write_synced(part, segment.data)
            for place in self._queues:
                queue = self._folder(place, name)
                disk.link(part, f"{queue}/{name.name}")
                self.inventory.add_segment(name, len(segment.data), place)
                disk.sync_folder(queue)
            disk.rename(part, to)
            disk.sync_folder(folder)
        except OSError:
            self._take_back(name, part)
            raise
        self.inventory.add_segment(name, len(segment.data))
        self._newest = name

    def _write_synced(self, path: str, data: bytes) -> None:
        fd = self._disk.create(path)
        try:
            self._disk.write(fd, data)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def _take_back(self, name: SegmentName, part: str) -> None:
        """Remove the files that a failed attempt to store a segment has left. The segment will be stored again."""
        for path in (part, *(self._path(place, name.path) for place in self._queues)):
            with suppress(OSError):
                self._disk.unlink(path)
        for place in self._queues:
            self.inventory.left(name, place)

    def _folder(self, place: str, name: SegmentName) -> str:
        """Return the path of a segment's folder in the spool. A missing folder is created durably."""
        made = self.root
        for part in (*place.split("/"), name.day, name.folder) if place else (name.day, name.folder):
            if self._disk.make_folder(f"{made}/{part}"):
                self._disk.sync_folder(made)
            made = f"{made}/{part}"
        return made

    def _path(self, place: str, path: str) -> str:
        return f"{self.root}/{place}/{path}" if place else f"{self.root}/{path}"

    def _make_room(self, wanted: int) -> bool:
        """Free a number of bytes of the spool on a full disk, and return True if anything was freed."""
        freed = self._spare()
        while freed <= wanted and (oldest := self.inventory.oldest()) is not None:
            before = self.inventory.bytes
            if not self._drop(oldest):
                break
            self._diagnostics.count(FULL)
            freed += before - self.inventory.bytes
        return freed > 0

    def keep_within(self) -> None:
        """Drop the oldest segments as long as the spool exceeds one of its limits."""
        while (found := self.inventory.excess(self._caps, self._clock())) is not None:
            oldest, excess = found
            if not self._drop(oldest):
                return
            if excess is Excess.AGE:
                self._diagnostics.count(OLD)
            else:
                self._diagnostics.count(MANY if excess is Excess.FILES else LARGE)

    def _drop(self, name: SegmentName) -> bool:
        for place in sorted(self.inventory.places(name)):
            try:
                self._disk.unlink(self._path(place, name.path))
            except FileNotFoundError:
                pass
            except OSError as error:
                self.failure = error
                return False
            self.inventory.left(name, place)
            if place.startswith(f"{QUEUE}/"):
                self.lost[place.removeprefix(f"{QUEUE}/")] += 1
            with suppress(OSError):  # other files are there
                self._disk.remove_folder(self._path(place, f"{name.day}/{name.folder}"))
                self._disk.remove_folder(self._path(place, name.day))
        return True

    def begin_queues(self, sinks: Sequence[str]) -> None:
        """Set the sinks that have queues from now on, and find the segments in queues that exist already.

        Raises:
            OSError: A queue cannot be read.
        """
        before, self._queues = self._queues, [f"{QUEUE}/{sink}" for sink in sinks]
        for place in set(self._queues).difference(before):
            for name, size in self._segments(place):
                self.inventory.add_segment(name, size, place)

    def queued(self, sink: str) -> Iterator[SegmentName]:
        """Return the segments in the queue of a sink, which has not accepted them yet, oldest first."""
        return self.inventory.queued(f"{QUEUE}/{sink}")

    def sent(self, sink: str, name: SegmentName) -> None:
        """Remove a segment from the queue of a sink that has accepted it.

        Raises:
            OSError: The file cannot be removed.
        """
        place = f"{QUEUE}/{sink}"
        with suppress(FileNotFoundError):
            self._disk.unlink(self._path(place, name.path))
        self.inventory.left(name, place)

    def refused(self, sink: str, name: SegmentName, reason: str) -> None:
        """Move a segment that a sink will never accept out of its queue into the folder of refused segments. Drop the
        oldest refused segments if there are too many.

        Args:
            reason: A key of REFUSED in wire/push_response_verdicts.py.

        Raises:
            OSError: The file cannot be moved.
        """
        place, folder = f"{QUEUE}/{sink}", f"{self.root}/{ASIDE}/{reason}"
        for each in (f"{self.root}/{ASIDE}", folder):
            self._disk.make_folder(each)
        kept = self._refused.setdefault(reason, [])
        with suppress(FileNotFoundError):
            self._disk.rename(self._path(place, name.path), f"{folder}/{name.name}")
            kept.append(name.name)
        self.inventory.left(name, place)
        while len(kept) > MAX_REFUSED:
            kept.sort()
            with suppress(FileNotFoundError):
                self._disk.unlink(f"{folder}/{kept[0]}")
            del kept[0]
            self._diagnostics.count(REFUSED)
