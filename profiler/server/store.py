"""The database: what is put in, what is dropped, and who may ask. All methods raise StoreError."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyprof.server import blocks
from pyprof.server.engine import Engine, literal
from pyprof.server.hours import Hours
from pyprof.server.native import Block
from pyprof.server.questions import Asked, Questions
from pyprof.server.rows import SegmentRows
from pyprof.server.stored import StoredRows
from pyprof.server.symbol_files import SymbolFiles
from pyprof.server.tables import NAMES

_FIRST_BATCH = 1 << 63
"""Above those of older versions, which did not grow."""


class Store:
    """For several threads, of which one inserts and drops. hours: makes rows by hours."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.hours = Hours(engine)
        self._stored = StoredRows()
        self._last = 0

    def close(self) -> None:
        self._engine.close()

    def check(self) -> None:
        """Check that the database answers. Raises StoreError."""
        self._engine.check()

    def insert(self, segments: Sequence[SegmentRows]) -> None:
        """The windows last: whoever is killed before has inserted nothing that counts."""
        if not segments:
            return
        stacks, series = self._stored.lacking_stacks(segments), self._stored.lacking_series(segments)
        for piece in blocks.pieces(stacks):
            self._put("stacks", blocks.stacks(piece))
        self._put("series", blocks.series(series))
        self._stored.add(stacks, series)
        batches = self._batches(len(segments))
        self._put("window_samples", blocks.samples(segments, batches))
        self._put("window_builds", blocks.builds(segments, batches))
        self._put("window_series", blocks.series_of_windows(segments, batches))
        self._put("windows", blocks.windows(segments, batches))

    def _batches(self, count: int) -> list[int]:
        """A number for each segment: the attempt to bring it in. They grow, through all servers of a store."""
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

    def listed(self, tenant: str) -> set[str]:
        """Paths of the segments that are in the database."""
        return {
            str(row[0])
            for row in self._engine.rows(
                f"SELECT segment FROM {self._engine.dialect.read('windows')} WHERE tenant = {literal(tenant)}"
            )
        }

    def drop_day(self, day: str) -> None:
        self._stored.forget(day)
        for table in NAMES:
            self._engine.run(f"ALTER TABLE {table} {self._engine.dialect.on_cluster} DROP PARTITION {literal(day)}")

    def empty(self) -> None:
        """All rows of all tables go."""
        for day in {
            str(row[0])
            for table in NAMES
            for row in self._engine.rows(f"SELECT DISTINCT day FROM {self._engine.dialect.read(table)}")
        }:
            self.drop_day(day)

    def asked(self, by: Asked, symbols: SymbolFiles | None = None) -> Questions:
        """symbols: names for what has none."""
        return Questions(self._engine, by, symbols)

    def give_up(self, asked: Asked) -> None:
        """What the database does for it ends soon."""
        asked.gone.set()
        self._engine.run(f"KILL QUERY WHERE query LIKE {literal(f'/* {asked.mark} */%')} ASYNC")

    def series(self, tenant: str, day: str, most: int) -> set[int]:
        """Numbers of the label sets that a tenant has had on a day."""
        found = self._engine.rows(
            f"SELECT DISTINCT series FROM {self._engine.dialect.read('series')} "
            f"WHERE tenant = {literal(tenant)} AND day = {literal(day)} LIMIT {most}"
        )
        return {int(row[0]) for row in found}
