"""Cache of the stacks and series that the database has for a day, which are not inserted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pyprof.model.labels import Labels
from pyprof.records import dataclass, field
from pyprof.server.segment_rows import SegmentRows
from pyprof.server.stack_digest_cache import StoredStackCache
from pyprof.server.table_blocks import SeriesKey, StacksOfDay

_MAX_SERIES = 200_000
"""Maximum number of series (label sets) of a day that are cached."""


@dataclass(slots=True)
class _Day:
    """The stacks and series that the database has for one day.

    Attributes:
        stacks: For each stack cache, a mask of its stacks.
        series: Keys of series.
    """

    stacks: WeakKeyDictionary[StoredStackCache, npt.NDArray[np.bool_]] = field(default_factory=WeakKeyDictionary)
    series: set[SeriesKey] = field(default_factory=set)


class StoredRowCache:
    """The cache of the stacks and series that the database has for each day, for one thread."""

    def __init__(self) -> None:
        self._days: dict[str, _Day] = {}

    def lacking_stacks(self, segments: Sequence[SegmentRows]) -> list[StacksOfDay]:
        """Return the stacks of segments that the database lacks, each once a day."""
        groups: dict[tuple[str, str, StoredStackCache], list[npt.NDArray[np.int64]]] = {}
        for each in segments:
            groups.setdefault((each.day, each.tenant, each.book), []).append(each.stacks)
        return [
            (day, tenant, book, wanted[~self._marks(day, book, int(wanted.max(initial=0)) + 1)[wanted]])
            for (day, tenant, book), found in groups.items()
            for wanted in (np.unique(np.concatenate(found)),)
        ]

    def lacking_series(self, segments: Sequence[SegmentRows]) -> dict[SeriesKey, Labels]:
        return {
            key: labels
            for each in segments
            for series, labels in each.labels.items()
            if (key := (each.day, each.tenant, each.type, each.name.service, series)) not in self._day(each.day).series
        }

    def add_rows(self, stacks: Sequence[StacksOfDay], series: Mapping[SeriesKey, Labels]) -> None:
        """Record that stacks and series of a day are in the database."""
        for day, _, book, numbers in stacks:
            self._marks(day, book, 0)[numbers] = True
        for key in series:
            known = self._day(key[0]).series
            if len(known) >= _MAX_SERIES:
                known.clear()
            known.add(key)

    def forget(self, day: str) -> None:
        self._days.pop(day, None)

    def _day(self, day: str) -> _Day:
        return self._days.setdefault(day, _Day())

    def _marks(self, day: str, book: StoredStackCache, size: int) -> npt.NDArray[np.bool_]:
        """Return the mask of a stack cache's stacks that the database has for a day, for at least `size` stacks."""
        of_day = self._day(day).stacks
        marks = of_day.get(book, np.zeros(0, np.bool_))
        if len(marks) < size:
            marks = of_day[book] = np.concatenate((marks, np.zeros(max(size, 2 * len(marks)) - len(marks), np.bool_)))
        return marks
