"""A check whether mappings have changed, by queries for single ones (linux/map_query.py)."""

from __future__ import annotations

import os

from pyprof.collectors.linux.map_query import Answer, MapQuery
from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.targets.maps_text import MapsText

_MAX_QUESTIONS = 64
_MAX_IN_TIME = 256  # number of queries while no thread is stopped
_FALSE_ALARMS = 8  # after more false alarms in a row the kernel's answers are considered incompatible with its text


class MappedSize:
    """The size of a process's mapped memory without data (/proc/PID/statm).

    If it has changed, the mappings have changed. If it has not, they are the same, except for memory that is both
    writable and executable from the start. Reading it costs a quarter of queries about all executable mappings.
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
    """A check for changes of a process's mappings.

    Args:
        query: Queries for single mappings, or None if the kernel has none.
        size: Size of mapped memory, or None if it is not available.

    Attributes:
        replaced: True if another program image was seen and not processed yet.
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
        """Return the query about mappings for machine code: (descriptor or -1 for none, address of the expected
        answers, their number).
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
        """Note that machine code got the expected answer to its query about mappings."""
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
        """Return the size of the process's mapped memory right before the text of its maps is read, or -1 if it is
        unknown.
        """
        return self._size.read() if self._size is not None else -1

    def note_comparison(self, changed: bool, size: int = -1) -> None:
        """Note that the text of the process's maps was read.

        If it contradicts the kernel's answers many times in a row, queries are given up. A single contradiction may be
        a library that was unloaded before the text was read.

        Args:
            changed: True if its executable mappings have changed.
            size: Result of measure_size() before.
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
