"""Address spaces by the kernel's own account: /proc/PID/maps once, from then on each new mapping at its time.

The kernel reports executable mappings as they are made, not when they go: what is mapped over goes, and now and then maps
is read again. A generation is made only for a stretch of time in which a sample was taken.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pyprof.collectors.libc import memory_reader
from pyprof.collectors.procfs import ProcDir, parse_maps
from pyprof.collectors.spaces import Image
from pyprof.errors import FormatError
from pyprof.model.modules import AddressSpace, Mapping, ReadMemory

Mappings = tuple[Mapping, ...]


@dataclass(eq=False)
class History:
    """The mappings of one process over time. name: of the process. Times are CLOCK_MONOTONIC.

    changes: (time, what) since the last settle(), what being a new mapping, or None for an exec.
    """

    pid: int
    next_id: Callable[[], int]
    mappings: Mappings
    image: Image = field(default_factory=Image)
    _changes: list[tuple[int, int, Mapping | None]] = field(default_factory=list)
    _space: AddressSpace | None = None
    _generation: int = 0
    _now: Mappings = ()

    def __post_init__(self) -> None:
        self._now = self.mappings

    def mapped(self, time_ns: int, mapping: Mapping) -> None:
        insort(self._changes, (time_ns, len(self._changes), mapping), key=lambda change: change[:2])

    def executed(self, time_ns: int) -> None:
        """A new program image begins."""
        insort(self._changes, (time_ns, len(self._changes), None), key=lambda change: change[:2])

    def child(self, pid: int, time_ns: int) -> History:
        """A forked process has the mappings that its parent has at that time."""
        mappings = self.mappings
        for at, _, change in self._changes:
            if at <= time_ns:
                mappings = () if change is None else overlay(mappings, change)
        return History(pid, self.next_id, mappings)

    def settle(self, times_ns: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], dict[int, AddressSpace]]:
        """The space of each sample. times_ns: (k,) ascending. Result: (k,) ids, and the spaces of these ids.

        Changes are taken in with it: a sample that comes late is given what holds then.
        """
        ids = np.zeros(len(times_ns), np.int32)
        spaces: dict[int, AddressSpace] = {}
        if self._changes:
            self._look()
        start = 0
        for at, _, change in self._changes:
            end = int(np.searchsorted(times_ns, at))
            if end > start:
                space = self._current()
                ids[start:end], spaces[space.id] = space.id, space
                start = end
            self._apply(change)
        if self._changes:
            self._changes.clear()
            self._correct()
        if start < len(times_ns):
            space = self._current()
            ids[start:], spaces[space.id] = space.id, space
        return ids, spaces

    def reread(self) -> None:
        """Records may have been lost: take what is mapped now."""
        self._look()
        self._correct()

    def _apply(self, change: Mapping | None) -> None:
        if change is None:
            self.image.alive = False
            self.image = Image()
            self.mappings = ()
        else:
            self.mappings = overlay(self.mappings, *self._segments(change))
        self._space = None

    def _segments(self, code: Mapping) -> Sequence[Mapping]:
        """The mapping and the data of the same file around it, where it still stands."""
        if not code.inode or not any(_same(code, m) for m in self._now):
            return (code,)
        return (*[m for m in self._now if (m.dev, m.inode, m.path) == (code.dev, code.inode, code.path)], code)

    def _look(self) -> None:
        try:
            directory = ProcDir(self.pid)
        except OSError:
            return
        try:
            self._now = parse_maps(directory.maps()) or self._now
        except (OSError, FormatError):
            pass
        finally:
            directory.close()

    def _correct(self) -> None:
        """Take over what maps says, as of now, if it knows more than the records: what went away."""
        if _code(self._now) != _code(self.mappings):
            self.mappings = self._now
            self._space = None

    def _current(self) -> AddressSpace:
        if self._space is None:
            self._generation += 1
            mappings = self.mappings
            read = _guarded(memory_reader(self.pid, self.image.is_alive), mappings, self)
            self._space = AddressSpace(
                self.next_id(), self.pid, self._generation, mappings, read, f"/proc/{self.pid}/root"
            )
        return self._space

    def mapping_now(self, avma: int) -> Mapping | None:
        return _at(self._now, avma)

    def ended(self) -> None:
        self.image.alive = False


def _guarded(read: ReadMemory, then: Mappings, history: History) -> ReadMemory:
    """Reads of a file's memory only where the same file still stands: what came after it is not taken for it."""

    def guarded(avma: int, size: int) -> bytes:
        was = _at(then, avma)
        if was is not None and was.inode:
            now = history.mapping_now(avma)
            if now is None or (now.inode, now.dev, now.start - now.offset) != (was.inode, was.dev, was.start - was.offset):
                return b""
        return read(avma, size)

    return guarded


def _at(mappings: Mappings, avma: int) -> Mapping | None:
    at = bisect_right(mappings, avma, key=lambda m: m.start) - 1
    return mappings[at] if at >= 0 and avma < mappings[at].end else None


def _same(a: Mapping, b: Mapping) -> bool:
    return (a.start, a.end, a.offset, a.inode) == (b.start, b.end, b.offset, b.inode)


def _code(mappings: Iterable[Mapping]) -> set[tuple[int, int, int, int]]:
    return {(m.start, m.end, m.offset, m.inode) for m in mappings if m.executable and m.path != "[vsyscall]"}


def overlay(mappings: Mappings, *new: Mapping) -> Mappings:
    """New mappings over others: what they cover is cut out of those."""
    for mapping in new:
        kept: list[Mapping] = []
        for old in mappings:
            if old.end <= mapping.start or old.start >= mapping.end:
                kept.append(old)
                continue
            if old.start < mapping.start:
                kept.append(replace(old, end=mapping.start))
            if old.end > mapping.end:
                kept.append(replace(old, start=mapping.end, offset=old.offset + mapping.end - old.start))
        insort(kept, mapping, key=lambda m: m.start)
        mappings = tuple(kept)
    return mappings
