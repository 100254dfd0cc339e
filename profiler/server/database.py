"""The database: insertions, deletions and queries. All methods raise StoreError."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from pyprof.server import table_blocks
from pyprof.server.clickhouse_native import Block
from pyprof.server.inserted_rows import StoredRowCache
from pyprof.server.migrations import NAMES
from pyprof.server.rollups import HourlyRollups
from pyprof.server.segment_rows import SegmentRows
from pyprof.server.sql_engine import SHORT_S, Engine, literal
from pyprof.server.sql_queries import ClientQueries, RunningQuery
from pyprof.server.symbol_files import SymbolFiles

MAX_SILENCE_S = 15.0
"""Time in seconds since the first of the database's health checks without success, after which queries are refused.

Two checks in a row have then failed or not ended, so a database that is only slow for a moment does not count.
"""
_FIRST_BATCH = 1 << 63
"""First batch number of insertions, above the numbers of older versions, which did not grow."""


class Store:
    """The server's database, for several threads, of which one inserts and drops; hours creates rollups."""

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
        """Insert segments into the database. Windows come last: if the server is killed before, it has inserted nothing
        that counts.
        """
        if not segments:
            return
        stacks, series = self._stored.lacking_stacks(segments), self._stored.lacking_series(segments)
        for piece in table_blocks.pieces(stacks):
            self._put("stacks", table_blocks.stacks(piece))
        self._put("series", table_blocks.series(series))
        self._stored.add_rows(stacks, series)
        batches = self._batches(len(segments))
        self._put("window_samples", table_blocks.samples(segments, batches))
        self._put("window_builds", table_blocks.builds(segments, batches))
        self._put("window_series", table_blocks.series_of_windows(segments, batches))
        self._put("windows", table_blocks.windows(segments, batches))

    def _batches(self, count: int) -> list[int]:
        """Return a batch number for each segment, which identifies the attempt to insert the segment into the database.

        The numbers grow, across all servers of a database.
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
        """Return the queries of a client of the database; symbols supplies missing names."""
        return ClientQueries(self._engine, by, symbols)

    def give_up(self, asked: RunningQuery) -> None:
        """Cancel the running SQL statements of a query."""
        asked.gone.set()
        self._engine.run(f"KILL QUERY WHERE query LIKE {literal(f'/* {asked.mark} */%')} ASYNC")

    def series(self, tenant: str, day: str, most: int) -> set[int]:
        """Return the series (label sets) that a tenant has had on a day. A push waits for this."""
        found = self._engine.rows(
            f"SELECT DISTINCT series FROM {self._engine.dialect.read('series')} "
            f"WHERE tenant = {literal(tenant)} AND day = {literal(day)} LIMIT {most}",
            SHORT_S,
        )
        return {int(row[0]) for row in found}
