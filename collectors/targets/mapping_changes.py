"""Changes of a process's mappings: when they are read again, and the samples near a change.

/proc/PID/maps is read for the executable mappings and the writable memory. Queries for single mappings show whether
they have changed (linux/procmap_query.py). The next reading decides which state the samples near a change belong to.
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain

from pyprof.collectors.linux.procfs import ProcDir, parse_maps
from pyprof.collectors.linux.procmap_query import Answer, MapQuery, pack_executable_vmas
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Mapping

_EXECUTABLE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ [r-][w-]x[sp] .*$", re.MULTILINE)
_WRITABLE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw[x-][sp] [0-9a-f]+ 00:00 0(?: |$)", re.MULTILINE)

_SHORT = 1 << 16
_parsed = lru_cache(8)(parse_maps)
"""The function parse_maps() with a cache, because a forked process has the same text as its parent and siblings."""


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
        text: Contents of the file.
        mappings: All mappings as of the last change of executable ones.
        vmas: The executable mappings as Vma tuples, in the form in which PROCMAP_QUERY answers.
        expected_vmas: The same tuples as a set.
        packed_vmas: The same tuples as an array of six words each.
    """

    def __init__(self, text: bytes) -> None:
        self._executable: tuple[bytes, ...] = ()
        self.store_text(text, changed=True)

    def store_text(self, text: bytes, changed: bool = False) -> bool:
        """Store a new reading of a process's maps, and return True if the executable mappings have changed.

        Args:
            text: The text.
            changed: True if the executable mappings have changed even if the text is the same.
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
        """Return the writable memory of the process around an address, or None."""
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


_MAX_QUESTIONS = 64
_MAX_IN_TIME = 256  # number of queries while no thread is stopped
_FALSE_ALARMS = 8  # after more false alarms in a row the kernel's answers are considered incompatible with its text


class MappedSize:
    """The size of a process's mapped memory without data (/proc/PID/statm).

    If the size has changed, the mappings have changed. If it has not, the mappings are the same, except for
    memory that is both writable and executable from the start. Reading the size costs a quarter of queries
    about all executable mappings.
    """

    def __init__(self, directory: ProcDir) -> None:
        """Open the statm file, which states the mapped size of a process.

        Raises:
            OSError: The file cannot be opened.
        """
        self.fd = directory.open("statm")

    def read(self) -> int:
        """Return the number of mapped pages of the process, or -1 if it is unknown."""
        try:
            fields = os.pread(self.fd, 256, 0).split()
            return int(fields[0]) - int(fields[5])
        except (OSError, IndexError):
            return -1

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class MapChanges:
    """A cheap check whether the mappings of a process have changed, by the kernel's answers to queries and by the size
    of mapped memory.

    Args:
        query: Queries for single mappings, or None if the kernel has none.
        size: Size of mapped memory, or None if it is not available.

    Attributes:
        replaced: True if an exec was seen whose mappings were not read yet.
    """

    def __init__(self, query: MapQuery | None, size: MappedSize | None = None) -> None:
        self.replaced = False
        self._query = query
        self._size = size
        self._proved_size = -1
        self._doubted = False
        self._false_alarms = 0

    def check_mapping(self, pc: int, maps: MapsText, every: bool) -> Answer:
        """Check whether the process's mapping at pc is unchanged, or with `every` all executable mappings."""
        if self._query is None:
            return Answer.UNKNOWN
        if every and len(maps.vmas) <= _MAX_QUESTIONS:
            answer = self._query.check_all_mappings(maps.vmas)
        else:
            answer = self._query.check_mapping_at(pc, maps.expected_vmas)
        if answer is Answer.REPLACED:
            self.replaced = True
            self._query.reopen_maps()
        self._doubted = answer is Answer.CHANGED
        return answer

    def build_query(self, maps: MapsText) -> tuple[int, int, int]:
        """Return what the compiled sampling loop needs for its queries about mappings: (descriptor or -1 for
        none, address of the expected answers, their number).
        """
        if self._query is None or self._query.fd < 0:
            return -1, 0, 0
        return self._query.fd, maps.packed_vmas.buffer_info()[0], len(maps.vmas)

    @property
    def mapped_size(self) -> tuple[int, int]:
        """Pair (descriptor of statm, number of pages when the mappings were last checked), or (-1, 0) if that is
        unknown.
        """
        if self._size is None or self._proved_size < 0 or self._doubted:
            return -1, 0
        return self._size.fd, self._proved_size

    def count_expected_answer(self) -> None:
        """Note that a query by the compiled sampling loop got the expected answer, so that the mappings are
        not in doubt.
        """
        self._doubted = False

    def warm_up(self, maps: MapsText) -> None:
        """Make a first query about a mapping and ignore its answer, so that later queries are fast."""
        if self._query is not None and maps.vmas:
            self._query.check_mapping_at(maps.vmas[0][0], maps.expected_vmas)

    def is_unchanged(self, maps: MapsText) -> bool:
        """Return True if the kernel confirms that the executable mappings of the process are unchanged."""
        if self._query is None or self._doubted or len(maps.vmas) > _MAX_IN_TIME:
            return False
        size = self._size.read() if self._size is not None else -1
        answer = self._query.check_all_mappings(maps.vmas)
        if answer is Answer.REPLACED:
            self.replaced = True
            self._query.reopen_maps()
        same = answer is Answer.SAME
        self._proved_size = size if same else -1
        return same

    def is_size_unchanged(self) -> bool:
        """Return True if the size of the process's mapped memory is that of the last check."""
        if self._size is None or self._proved_size < 0 or self._doubted:
            return False
        return self._size.read() == self._proved_size

    def measure_size(self) -> int:
        """Return the size of the process's mapped memory in pages, or -1 if it is unknown. It is measured
        right before the text of the maps is read.
        """
        return self._size.read() if self._size is not None else -1

    def note_comparison(self, changed: bool, size: int = -1) -> None:
        """Note that the text of the process's maps was read, and whether it confirms the kernel's answers.

        If the text contradicts the answers many times in a row, no more queries are made. A single
        contradiction may be a library that was unloaded before the text was read.

        Args:
            changed: True if the executable mappings in the text have changed.
            size: Result of measure_size() before the reading.
        """
        if self._doubted and self._query is not None:
            self._false_alarms = 0 if changed else self._false_alarms + 1
            if self._false_alarms > _FALSE_ALARMS:
                self._query.close()
        self._doubted = False
        self._proved_size = size if size == self.measure_size() else -1

    def restart_checks(self) -> None:
        """Start to check the mappings of a new program of the process."""
        self.replaced = False
        self._proved_size = -1
        if self._query is not None:
            self._query.reopen_maps()

    def close(self) -> None:
        if self._size is not None:
            self._size.close()
        if self._query is not None:
            self._query.close()


Moves = list[tuple[int, AddressSpace]]
"""A list of (number of a sample, address space) for samples that belong to another address space than the one
that was current when they were taken.
"""

Mappings = tuple[Mapping, ...]


@dataclass(slots=True)
class UnsettledLane:
    """A sample that was taken near a change of the mappings. The next reading of /proc/PID/maps decides
    whether the sample belongs to the mappings before or after the change. `proved` is True if the mapping at
    its pc is known to be that of the current address space.
    """

    lane: int
    pc: int
    sp: int
    proved: bool


class UnsettledSamples:
    """The samples of one process that were taken near a change of the mappings. The next reading of
    /proc/PID/maps decides their address spaces. `ambiguous` is a function that is called for each sample that
    fits both states equally.
    """

    def __init__(self, ambiguous: Callable[[], None]) -> None:
        self._ambiguous = ambiguous
        self._samples: list[UnsettledLane] = []

    def add_sample(self, sample: UnsettledLane) -> None:
        self._samples.append(sample)

    def __bool__(self) -> bool:
        return bool(self._samples)

    def clear_samples(self) -> None:
        self._samples.clear()

    def decide_moves(
        self, old: AddressSpace, new: AddressSpace, joined: Callable[[Mappings], AddressSpace] | None
    ) -> Moves:
        """Decide for each sample near a change whether it belongs to the old or the new mappings.

        Args:
            old: The address space before the change.
            new: The address space after the change.
            joined: Function that returns an address space of mappings from both, or None if `new` is another
                program image.
        """
        if not self._samples:
            return []
        if joined is not None:
            was, now = list_executables(old.mappings), list_executables(new.mappings)
            added, removed = now - was, was - now
            if not added:
                return []
            if not removed:
                return [(sample.lane, new) for sample in self._samples]
            if not _overlap(added, removed):
                union = joined(_union(old.mappings, new.mappings))
                return [(sample.lane, union) for sample in self._samples]
        changes = []
        for sample in self._samples:
            if sample.proved and (joined is None or old.mapping_at(sample.pc) != new.mapping_at(sample.pc)):
                continue
            score_old, score_new = (_score(space, sample.pc, sample.sp) for space in (old, new))
            if score_old == score_new > 1:
                self._ambiguous()
            if score_new >= score_old:
                changes.append((sample.lane, new))
        return changes

    def count_unexplained(self, moves: Moves, otherwise: AddressSpace) -> None:
        """Count the samples whose pc is in no mapped code as ambiguous.

        Args:
            moves: The samples that were moved to another address space.
            otherwise: Address space of all other samples.
        """
        moved = dict(moves)
        for sample in self._samples:
            code = moved.get(sample.lane, otherwise).mapping_at(sample.pc)
            if code is None or not code.executable:
                self._ambiguous()


_Key = tuple[int, int, int, str, int, str]


def list_executables(mappings: Iterable[Mapping]) -> set[_Key]:
    return {
        (m.start, m.end, m.offset, m.dev, m.inode, m.path) for m in mappings if m.executable and m.path != "[vsyscall]"
    }


def _overlap(some: set[_Key], others: set[_Key]) -> bool:
    spans = sorted([(key[0], key[1]) for key in some | others])
    return any(a[1] > b[0] for a, b in itertools.pairwise(spans))


def _union(old: tuple[Mapping, ...], new: tuple[Mapping, ...]) -> tuple[Mapping, ...]:
    """Return the mappings after a change, together with those mappings from before the change that do not
    overlap them.
    """
    starts, ends = [m.start for m in new], [m.end for m in new]
    kept = []
    for mapping in old:
        at = bisect_right(starts, mapping.start) - 1
        free_below = at < 0 or ends[at] <= mapping.start
        free_above = at + 1 >= len(starts) or starts[at + 1] >= mapping.end
        if free_below and free_above:
            kept.append(mapping)
    return tuple(sorted((*new, *kept), key=lambda m: m.start))


def _score(space: AddressSpace, pc: int, sp: int) -> int:
    code, stack = space.mapping_at(pc), space.mapping_at(sp)
    return (2 if code and code.executable else 0) + (1 if stack and "w" in stack.perms else 0)
