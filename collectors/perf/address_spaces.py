"""Address spaces from the kernel's records: /proc/PID/maps is read once, and then each record of a new
mapping is applied at its time.

The kernel reports executable mappings when they are made, not when they are removed. A mapping ends when
another one covers it; /proc/PID/maps is also read again after each report. An AddressSpace object is made
only for times with samples.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.libc import memory_reader
from pyprof.collectors.linux.procfs import ProcDir, parse_maps
from pyprof.collectors.linux.procmap_query import make_guarded_reader, make_maps_reader
from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.address_space import AddressSpace, Mapping, ProgramImage, ReadMemory

Mappings = tuple[Mapping, ...]
Change = Mapping | Mappings | None
"""A change of a process's mappings: one new mapping, all mappings from a reading of /proc/PID/maps (a tuple),
or None for an exec.
"""

_MAX_CHANGES, _MAX_WORK = 1 << 16, 1 << 26
"""Limits for applying new mappings of a process one by one: the number of new mappings, and the product of
that and the number of existing mappings.

Above a limit, the process's /proc/PID/maps is read instead.
"""
_MAX_SEEN = 4096


@dataclass(eq=False)
class PendingChanges:
    """A queue of changes of one process's mappings, in order of time. `skipped` is True if there were more
    new mappings than the queue may store.
    """

    skipped: bool = False
    _changes: list[tuple[int, int, Change]] = field(default_factory=list)
    _order: int = 0

    def __bool__(self) -> bool:
        return bool(self._changes)

    def __iter__(self) -> Iterator[tuple[int, Change]]:
        return ((at, change) for at, _, change in self._changes)

    def has_room(self, mapped: int) -> bool:
        """Return True if one more new mapping can be queued. Otherwise set `skipped` and return False.

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
    """The addresses at which the code of each file was mapped in one process, by inode."""

    _seen: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    _count: int = 0

    def add_mapping(self, mapping: Mapping, image: ProgramImage) -> None:
        """Store the address range at which a file's code was mapped. If two files were mapped at one address,
        mark the range as contested in the program image: memory that is read there later may be that of
        either file.

        Each range of a file is stored once, because a program may map a thousand files at one place.
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


HIDDEN = -1
_NEAR_NS = 20_000_000
_MAX_REPLACED = 16
_MAX_SEGMENTS = 8
_READ_BUDGET = 5
"""Factor that limits the cost of reading a process's /proc/PID/maps: after a reading that took time t, there
is none for _READ_BUDGET times t.
"""
_EXEC_NS = 20_000_000  # time after an exec in which samples may still have the old program's registers


class MappingLayout:
    """The mappings of a process, by address, with fast replacement of single mappings.

    A program may replace thousands of mappings between two samples. The time to add a mapping depends only on
    the mappings that it covers, not on the number of all mappings.
    """

    def __init__(self, mappings: Mappings) -> None:
        """Create a layout of mappings, which are sorted by their starts and do not overlap."""
        self._all: Mappings | None = mappings
        self._made = list(mappings)

    def replace_mappings(self, mappings: Mappings) -> None:
        """Replace all mappings of the layout by the given ones."""
        self._all, self._made = mappings, list(mappings)

    def __len__(self) -> int:
        return len(self._made)

    @property
    def mappings(self) -> Mappings:
        if self._all is None:
            self._all = self._together()
        return self._all

    def _together(self) -> Mappings:
        return tuple(self._made)

    def has_mapping(self, mapping: Mapping) -> bool:
        """Return True if the layout has exactly this mapping of a file: the same part of the file at the same
        address.
        """
        at = bisect_left(self._made, mapping.start, key=_start)
        return bool(mapping.inode) and at < len(self._made) and self._made[at] == mapping

    def cover_range(self, mapping: Mapping) -> None:
        """Add a mapping to the layout, and remove the parts of other mappings that it covers."""
        made = self._made
        first = max(bisect_right(made, mapping.start, key=_start) - 1, 0)
        if made and made[first].end <= mapping.start:
            first += 1
        last = bisect_left(made, mapping.end, first, key=_start)
        if last == first + 1 and made[first] is mapping:
            return
        made[first:last] = [*_left_over(made[first:last], mapping)]
        self._all = None


@dataclass(eq=False)
class MappingHistory:
    """The mappings of one process over time (CLOCK_MONOTONIC).

    Attributes:
        pid: The process.
        next_id: Function that returns a new identifier for an address space.
        layout: The mappings.
        root: Pid of the selected process of its process tree.
        parent: Pid of the process that forked it; 0 if that is unknown or it has called exec since.
        image: Current program image of the process.
        _changes: Changes that no assign_spaces() has applied yet.
        _stale: True if /proc/PID/maps must be read again, because a change was reported after the last
            reading.
        _look_ns: Monotonic time before which the maps are not read again.
        _now: The mappings from the last reading of /proc/PID/maps.
    """

    pid: int
    next_id: Callable[[], int]
    layout: MappingLayout
    root: int = 0
    parent: int = 0
    image: ProgramImage = field(default_factory=ProgramImage)
    _changes: PendingChanges = field(default_factory=PendingChanges)
    _places: CodePlaces = field(default_factory=CodePlaces)
    _stale: bool = False
    _look_ns: int = 0
    _space: AddressSpace | None = None
    _generation: int = 0
    _now: Mappings = ()
    _replaced: list[tuple[int, AddressSpace]] = field(default_factory=list)
    _hidden: ProgramImage | None = None
    _over: bool = False

    def __post_init__(self) -> None:
        self._now = self.mappings

    @property
    def mappings(self) -> Mappings:
        """The mappings of the process at the last call of assign_spaces()."""
        return self.layout.mappings

    def hide_mappings(self) -> None:
        """Drop all samples of the process until it calls exec; samples of the next program are kept."""
        self._hidden = self.image

    def takes_mappings(self) -> bool:
        """Return True if add_mapping() may store one more mapping. Return False if too many are stored, so
        that all mappings of the process must be read again.

        The next assign_spaces() applies the stored mappings one by one to the samples between them.
        """
        return self._changes.has_room(len(self.layout))

    def add_mapping(self, time_ns: int, mapping: Mapping) -> None:
        """Store the time at which the process got a new executable mapping."""
        self._places.add_mapping(mapping, self.image)
        self._changes.add_change(time_ns, mapping)

    def note_exec(self, time_ns: int) -> None:
        """Store the time at which the process began to run another program."""
        self._changes.add_change(time_ns, None)

    def make_child(self, pid: int, time_ns: int) -> MappingHistory:
        """Return the mapping history of a forked process, which has the mappings of its parent at that time."""
        layout = MappingLayout(self.mappings)
        for at, change in self._changes:
            if at <= time_ns:
                self._lay(layout, change)
        return MappingHistory(pid, self.next_id, layout, self.root, self.pid)

    def assign_spaces(
        self, times_ns: npt.NDArray[np.int64], pcs: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int32], dict[int, AddressSpace]]:
        """Find the address space of each sample of a process, and apply the changes of its mappings.

        A sample that is passed to a later call gets the state after these changes. A sample that the kernel
        took inside an exec gets the old program's address space, because it still has the old program's pc.

        Args:
            times_ns: Times of k samples, ascending.
            pcs: Their pcs.

        Returns:
            Identifiers of their address spaces, HIDDEN for unwanted samples; and the address spaces by identifier.
        """
        ids = np.zeros(len(times_ns), np.int32)
        spaces: dict[int, AddressSpace] = {}
        start = 0
        for at, change in self._taken_changes():
            end = int(np.searchsorted(times_ns, at))
            if end > start:
                space = self._current()
                ids[start:end], spaces[space.id] = space.id, space
                start = end
            if change is None:
                self._replaced.append((at, self._current()))
            self._apply(change)
        if start < len(times_ns):
            space = self._current()
            ids[start:], spaces[space.id] = space.id, space
        self._inside_exec(times_ns, pcs, ids, spaces)
        if self._hidden is not None:
            for id_ in [id_ for id_, space in spaces.items() if space.image is self._hidden]:
                ids[ids == id_] = HIDDEN
                del spaces[id_]
        return ids, spaces

    def _taken_changes(self) -> list[tuple[int, Change]]:
        """Empty the queue of mapping changes, and return those that can be applied, with their times.

        A reading of /proc/PID/maps during a change mixes two states. So readings near a reported change are
        dropped, unless the queue had no room for all changes.
        """
        changes, self._changes = self._changes, PendingChanges()
        reported = [at for at, change in changes if not isinstance(change, tuple)]
        self._stale = self._stale or bool(reported)
        if self._stale and time.monotonic_ns() >= self._look_ns:
            self.read_maps()
        return [
            (at, change)
            for at, change in changes
            if changes.skipped
            or not isinstance(change, tuple)
            or all(abs(at - other) >= _NEAR_NS for other in reported)
        ]

    def apply_changes(self) -> None:
        """Apply the stored mapping changes of a process without samples. If the process has ended, they are
        kept for late samples.
        """
        if self._changes and not self._over:
            self.assign_spaces(np.zeros(0, np.int64), np.zeros(0, np.uint64))

    def _inside_exec(
        self,
        times_ns: npt.NDArray[np.int64],
        pcs: npt.NDArray[np.uint64],
        ids: npt.NDArray[np.int32],
        spaces: dict[int, AddressSpace],
    ) -> None:
        """Assign samples that the kernel took during an exec, before the new program ran, to the old program's address
        space.
        """
        for at, old in self._replaced:
            for lane in np.flatnonzero((times_ns >= at) & (times_ns < at + _EXEC_NS)).tolist():
                pc = int(pcs[lane])
                if spaces[int(ids[lane])].mapping_at(pc) is None and old.mapping_at(pc) is not None:
                    ids[lane], spaces[old.id] = old.id, old
        if len(times_ns):
            last = int(times_ns[-1])
            self._replaced = [(at, old) for at, old in self._replaced if at + _EXEC_NS > last][-_MAX_REPLACED:]

    def distrust_mappings(self) -> None:
        """Read the process's /proc/PID/maps again because records of mappings may have been lost. If the maps
        were just read, this is done at the next change.
        """
        self._stale = True
        if time.monotonic_ns() >= self._look_ns:
            self.read_maps()

    def read_maps(self) -> None:
        """Read the process's /proc/PID/maps, and queue the result as a change at the present time. Records of
        earlier mappings may still arrive.
        """
        at = time.monotonic_ns()
        now = _maps(self.pid)
        self._stale = False
        self._look_ns = at + _READ_BUDGET * (time.monotonic_ns() - at)
        if now:
            self._now = now
            self._changes.add_change(at, now)

    def unmoved(self) -> bool:
        """Return True if the executable mappings in the process's /proc/PID/maps are still the known ones."""
        now = _maps(self.pid)
        return self.image.alive and not self._changes and _code(now) == _code(self.mappings)

    def _apply(self, change: Change) -> None:
        if change is None:
            self.parent = 0
            self.image.alive = False
            self.image = self._next_image()
        elif isinstance(change, tuple):
            if (now := _code(change)) == (before := _code(self.mappings)):
                return
            if self.image is self._hidden and not now & before:  # the record of its exec was lost
                self.image = self._next_image()
        # the same file was mapped again at the same address
        if isinstance(change, Mapping) and self.layout.has_mapping(change):
            return
        self._lay(self.layout, change)
        self._space = None

    def _lay(self, layout: MappingLayout, change: Change) -> None:
        if change is None or isinstance(change, tuple):
            layout.replace_mappings(change or ())
        else:
            for each in self._segments(change):
                layout.cover_range(each)

    def _segments(self, code: Mapping) -> Sequence[Mapping]:
        """Return an executable mapping together with the data mappings of the same file next to it, from the
        last reading of the maps. Return it alone if that reading lacks it.
        """
        at = bisect_left(self._now, code.start, key=_start)
        if not code.inode or at == len(self._now) or not _same(code, self._now[at]):
            return (code,)
        file = code.dev, code.inode, code.path
        around = self._now[max(at - _MAX_SEGMENTS, 0) : at + _MAX_SEGMENTS]
        return (*[m for m in around if (m.dev, m.inode, m.path) == file], code)

    def _current(self) -> AddressSpace:
        if self._space is None:
            self._generation += 1
            mappings = self.mappings
            read = _uncontested(
                make_guarded_reader(memory_reader(self.pid, self.image.is_alive), make_maps_reader(self.pid), mappings),
                self.image,
            )
            self._space = AddressSpace(
                self.next_id(), self.pid, self._generation, mappings, read, f"/proc/{self.pid}/root", image=self.image
            )
        return self._space

    def _next_image(self) -> ProgramImage:
        return ProgramImage(alive=not self._over, contested=self.image.contested)

    def note_end(self) -> None:
        """Store that the process has ended. Records of its earlier execs may arrive later."""
        self._over = True
        self.image.alive = False


def _uncontested(read: ReadMemory, image: ProgramImage) -> ReadMemory:
    return lambda avma, size: b"" if image.is_contested(avma) else read(avma, size)


def _maps(pid: int) -> Mappings:
    """Return the mappings of a process, or () if it has ended."""
    try:
        directory = ProcDir(pid)
    except OSError:
        return ()
    try:
        return parse_maps(directory.maps())
    except (OSError, FormatError):
        return ()
    finally:
        directory.close()


def _same(a: Mapping, b: Mapping) -> bool:
    return (a.start, a.end, a.offset, a.inode) == (b.start, b.end, b.offset, b.inode)


def _code(mappings: Iterable[Mapping]) -> set[tuple[int, int, int, int]]:
    return {(m.start, m.end, m.offset, m.inode) for m in mappings if m.executable and m.path != "[vsyscall]"}


def _left_over(covered: Sequence[Mapping], mapping: Mapping) -> Iterator[Mapping]:
    """Yield a new mapping, and the remaining parts of the mappings that it overlaps."""
    if covered and covered[0].start < mapping.start:
        yield replace(covered[0], end=mapping.start)
    yield mapping
    if covered and covered[-1].end > mapping.end:
        last = covered[-1]
        yield replace(last, start=mapping.end, offset=last.offset + mapping.end - last.start)


def _start(mapping: Mapping) -> int:
    return mapping.start
