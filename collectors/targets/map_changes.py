"""Have the mappings changed? What the kernel answers to questions about single ones (linux/map_query.py)."""

from __future__ import annotations

import os

from pyprof.collectors.linux.map_query import Answer, MapQuery
from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.targets.maps_text import MapsText

_MOST_QUESTIONS = 64
_MOST_IN_TIME = 256  # questions, where no thread stands still
_FALSE_ALARMS = 8  # after so many the kernel's answers are not to be compared with its text


class MappedSize:
    """How much a process has mapped that is no data (/proc/PID/statm). Where that is another than before, its mappings
    are others, and the other way round but for code in memory that was never mapped otherwise than to be written and
    run. To ask costs a quarter of what questions about all executable mappings do.
    """

    def __init__(self, directory: ProcDir) -> None:
        """Raises OSError."""
        self.fd = directory.open("statm")

    def read(self) -> int:
        """Pages; -1 if it is not known."""
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
    """replaced: another program image was seen, and not taken in yet. query: None where the kernel answers nothing.
    size: None where it cannot be asked for.
    """

    def __init__(self, query: MapQuery | None, size: MappedSize | None = None) -> None:
        self.replaced = False
        self._query = query
        self._size = size
        self._proved_size = -1
        self._doubted = False
        self._false_alarms = 0

    def ask(self, pc: int, maps: MapsText, every: bool) -> Answer:
        """Is the mapping at pc as it was? every: all executable ones are asked about."""
        if self._query is None:
            return Answer.UNKNOWN
        if every and len(maps.vmas) <= _MOST_QUESTIONS:
            answer = self._query.every(maps.vmas)
        else:
            answer = self._query.near(pc, maps.known_vmas)
        if answer is Answer.REPLACED:
            self.replaced = True
            self._query.renew()
        self._doubted = answer is Answer.CHANGED
        return answer

    def question(self, maps: MapsText) -> tuple[int, int, int]:
        """What machine code asks in our place: a descriptor, -1 where the kernel is not asked, and where the expected
        answers are, and how many.
        """
        if self._query is None or self._query.fd < 0:
            return -1, 0, 0
        return self._query.fd, maps.packed_vmas.buffer_info()[0], len(maps.vmas)

    @property
    def mapped_size(self) -> tuple[int, int]:
        """A descriptor of statm, and the size when the mappings were seen last; -1, 0 where that is not known."""
        if self._size is None or self._proved_size < 0 or self._doubted:
            return -1, 0
        return self._size.fd, self._proved_size

    def answered(self) -> None:
        """It was as expected."""
        self._doubted = False

    def warm_up(self, maps: MapsText) -> None:
        """A question whose answer is discarded."""
        if self._query is not None and maps.vmas:
            self._query.near(maps.vmas[0][0], maps.known_vmas)

    def is_same(self, maps: MapsText) -> bool:
        """Does the kernel say that the executable mappings are as they were?"""
        if self._query is None or self._doubted or len(maps.vmas) > _MOST_IN_TIME:
            return False
        size = self._size.read() if self._size is not None else -1
        answer = self._query.every(maps.vmas)
        if answer is Answer.REPLACED:
            self.replaced = True
            self._query.renew()
        same = answer is Answer.SAME
        self._proved_size = size if same else -1
        return same

    def seem_same(self) -> bool:
        """Is as much mapped as when they were seen last?"""
        if self._size is None or self._proved_size < 0 or self._doubted:
            return False
        return self._size.read() == self._proved_size

    def measured(self) -> int:
        """How much is mapped, right before the text is read; -1 if it is not known."""
        return self._size.read() if self._size is not None else -1

    def compared(self, changed: bool, size: int = -1) -> None:
        """The text was read. size: as measured() before. changed: its executable mappings are others. Where it does not
        say what the kernel answered, again and again, nothing is asked any more.
        """
        if self._doubted and not changed and self._query is not None:
            self._false_alarms += 1
            if self._false_alarms > _FALSE_ALARMS:
                self._query.close()
        self._doubted = False
        self._proved_size = size if size == self.measured() else -1

    def renew(self) -> None:
        """The image is another one."""
        self.replaced = False
        self._proved_size = -1
        if self._query is not None:
            self._query.renew()

    def close(self) -> None:
        if self._size is not None:
            self._size.close()
        if self._query is not None:
            self._query.close()
