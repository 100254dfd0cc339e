"""The server's database: insertions, deletions and queries. All methods raise StoreError."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pyprof.fleet.server.ingest.segment_to_rows import SegmentRows
from pyprof.fleet.server.ingest.stack_caches import StoredStackCache
from pyprof.fleet.server.query.profile_queries import ClientQueries, RunningQuery
from pyprof.fleet.server.store import clickhouse_native_blocks
from pyprof.fleet.server.store.clickhouse_engine import NAMES, SHORT_S, Engine, literal
from pyprof.fleet.server.store.clickhouse_native_blocks import Block, SeriesKey, StacksOfDay
from pyprof.fleet.server.store.rollups import HourlyRollups
from pyprof.fleet.server.store.symbol_files import SymbolFiles
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.thread_identity import Labels

_MAX_SERIES = 200_000
"""Maximum number of series (label sets) of a day that are cached."""


@dataclass(slots=True)
class _Day:
    """The stacks and series of one day that are known to be in the database.

    Attributes:
        stacks: For each stack cache, a mask of its stacks: True for those that the database has.
        series: Keys of series.
    """

    stacks: WeakKeyDictionary[StoredStackCache, npt.NDArray[np.bool_]] = field(default_factory=WeakKeyDictionary)
    series: set[SeriesKey] = field(default_factory=set)


class StoredRowCache:
    """A cache of the stacks and series that the database has for each day, so that each is inserted only once. One
    thread uses it.
    """

    def __init__(self) -> None:
        self._days: dict[str, _Day] = {}

    def lacking_stacks(self, segments: Sequence[SegmentRows]) -> list[StacksOfDay]:
        """Return those stacks of segments that the database does not have for the segments' day yet, each once."""
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
        """Return a mask of the stacks in a stack cache: True for stacks that the database has for a day. The mask has
        at least `size` elements.
        """
        of_day = self._day(day).stacks
        marks = of_day.get(book, np.zeros(0, np.bool_))
        if len(marks) < size:
            marks = of_day[book] = np.concatenate((marks, np.zeros(max(size, 2 * len(marks)) - len(marks), np.bool_)))
        return marks


MAX_SILENCE_S = 15.0
"""Time in seconds without a successful health check of the database after which queries are refused. It counts from the
first check without success.

Two checks in a row have then failed or not ended, so a database that is only slow for a moment does not count.
"""
_FIRST_BATCH = 1 << 63
"""Minimum batch number of an insertion. The batch numbers of versions whose numbers did not grow with time are below
it.
"""


class Store:
    """The server's database. Several threads may query it, but only one inserts and drops rows. Its attribute `hours`
    creates the hourly rollups.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.hours = HourlyRollups(engine)
        self._stored = StoredRowCache()
        self._last = 0
        self._silent_since = math.inf

    def close(self) -> None:
        self._engine.close()

    def check(self) -> None:
        """Raise StoreError if the database does not respond."""
        self._silent_since = min(self._silent_since, time.monotonic())
        self._engine.check()
        self._silent_since = math.inf

    @property
    def is_silent(self) -> bool:
        """True if no health check of the database has succeeded for some time, so that a query would only wait."""
        return time.monotonic() > self._silent_since + MAX_SILENCE_S

    def insert(self, segments: Sequence[SegmentRows]) -> None:
        """Insert segments into the database. The rows of the table `windows` come last. If the server is killed before,
        the other rows do not count.
        """
        if not segments:
            return
        stacks, series = self._stored.lacking_stacks(segments), self._stored.lacking_series(segments)
        for piece in clickhouse_native_blocks.pieces(stacks):
            self._put("stacks", clickhouse_native_blocks.stacks(piece))
        self._put("series", clickhouse_native_blocks.series(series))
        self._stored.add_rows(stacks, series)
        batches = self._batches(len(segments))
        self._put("window_samples", clickhouse_native_blocks.samples(segments, batches))
        self._put("window_builds", clickhouse_native_blocks.builds(segments, batches))
        self._put("window_series", clickhouse_native_blocks.series_of_windows(segments, batches))
        self._put("windows", clickhouse_native_blocks.windows(segments, batches))

    def _batches(self, count: int) -> list[int]:
        """Return a batch number for each segment, which identifies this attempt to insert the segment into the
        database.

        Batch numbers grow with each insertion, across all servers that use the database.
        """
        if not self._last:
            tables = (("windows", "batch"), ("rolls", "upto"))
            asked = [f"SELECT max({name}) FROM {self._engine.dialect.read(table)}" for table, name in tables]
            self._last = max((int(row[0]) for sql in asked for row in self._engine.rows(sql)), default=0)
        first = max(self._last + 1, _FIRST_BATCH + time.time_ns())
        self._last = first + count - 1
        return list(range(first, first + count))

    def _put(self, table: str, block: Block) -> None:
        if block.rows:
            self._engine.insert(self._engine.dialect.read(table), block)

    def listed(self) -> set[tuple[str, str]]:
        """Return (tenant, path) of all segments that are in the database."""
        sql = f"SELECT tenant, segment FROM {self._engine.dialect.read('windows')}"
        return {(str(row[0]), str(row[1])) for row in self._engine.rows(sql)}

    def sample_listed(self, count: int) -> list[tuple[str, str]]:
        """Return (tenant, path) of segments that are in the database, drawn at random."""
        table = self._engine.dialect.read("windows")
        found = self._engine.rows(f"SELECT tenant, segment FROM {table} ORDER BY rand() LIMIT {count}")
        return [(str(row[0]), str(row[1])) for row in found]

    def drop_day(self, day: str) -> None:
        self._stored.forget(day)
        for table in NAMES:
            self._engine.run(f"ALTER TABLE {table} {self._engine.dialect.on_cluster} DROP PARTITION {literal(day)}")

    def empty(self) -> None:
        """Delete all rows of all tables of the server's database."""
        for day in {
            str(row[0])
            for table in NAMES
            for row in self._engine.rows(f"SELECT DISTINCT day FROM {self._engine.dialect.read(table)}")
        }:
            self.drop_day(day)

    def make_queries(self, by: RunningQuery, symbols: SymbolFiles | None = None) -> ClientQueries:
        """Return an object for the queries of one client of the database. `symbols` supplies names that frames lack."""
        return ClientQueries(self._engine, by, symbols)

    def give_up(self, asked: RunningQuery) -> None:
        """Cancel the running SQL statements of a query."""
        asked.gone.set()
        self._engine.run(f"KILL QUERY WHERE query LIKE {literal(f'/* {asked.mark} */%')} ASYNC")

    def series(self, tenant: str, day: str, most: int) -> set[int]:
        """Return the series (label sets) that a tenant has had on a day. The handling of a push waits for this
        query.
        """
        found = self._engine.rows(
            f"SELECT DISTINCT series FROM {self._engine.dialect.read('series')} "
            f"WHERE tenant = {literal(tenant)} AND day = {literal(day)} LIMIT {most}",
            SHORT_S,
        )
        return {int(row[0]) for row in found}
