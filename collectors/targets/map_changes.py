"""Have the mappings changed? What the kernel answers to questions about single ones (linux/map_query.py)."""

from __future__ import annotations

from pyprof.collectors.linux.map_query import Answer, MapQuery
from pyprof.collectors.targets.maps_text import MapsText

_MOST_QUESTIONS = 64
_MOST_IN_TIME = 256  # questions, where no thread stands still
_FALSE_ALARMS = 8  # after so many the kernel's answers are not to be compared with its text


class MapChanges:
    """replaced: another program image was seen, and not taken in yet. query: None where the kernel answers nothing."""

    def __init__(self, query: MapQuery | None) -> None:
        self.replaced = False
        self._query = query
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

    def warm_up(self, maps: MapsText) -> None:
        """A question whose answer is discarded."""
        if self._query is not None and maps.vmas:
            self._query.near(maps.vmas[0][0], maps.known_vmas)

    def is_same(self, maps: MapsText) -> bool:
        """Does the kernel say that the executable mappings are as they were?"""
        if self._query is None or self._doubted or len(maps.vmas) > _MOST_IN_TIME:
            return False
        answer = self._query.every(maps.vmas)
        if answer is Answer.REPLACED:
            self.replaced = True
            self._query.renew()
        return answer is Answer.SAME

    def compared(self, changed: bool) -> None:
        """The text was read. changed: its executable mappings are others. Where it does not say what the kernel
        answered, again and again, nothing is asked any more.
        """
        if self._doubted and not changed and self._query is not None:
            self._false_alarms += 1
            if self._false_alarms > _FALSE_ALARMS:
                self._query.close()
        self._doubted = False

    def renew(self) -> None:
        """The image is another one."""
        self.replaced = False
        if self._query is not None:
            self._query.renew()

    def close(self) -> None:
        if self._query is not None:
            self._query.close()
