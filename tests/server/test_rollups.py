"""Tests of the choice between rollups by hour and raw windows. tests/server/by_hours.py checks it on a database."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.fleet.server.ingest.database_indexer import Indexer, Retention
from pyprof.fleet.server.ingest.segment_files import SegmentFiles
from pyprof.fleet.server.ingest.segment_to_rows import HOUR_NS, hour_of
from pyprof.fleet.server.ingest.stack_caches import TenantStackCaches
from pyprof.fleet.server.query.sample_selection import SampleQuery
from pyprof.fleet.server.store.clickhouse_engine import Dialect, StoreError
from pyprof.fleet.server.store.clickhouse_native_blocks import Block
from pyprof.fleet.server.store.database import Store
from pyprof.fleet.server.store.rollups import MIN_NS, HourlyRollups, Rollup, WindowsOfHour, choose_rollups

pytestmark = pytest.mark.system

MINUTE_NS, DAY_NS = 60 * 10**9, 24 * HOUR_NS
MINUTES = st.integers(0, 40 * 60)


@given(st.lists(MINUTES, max_size=60), st.data(), MINUTES, st.integers(1, 30 * 60))
def test_each_window_of_a_span_counts_once(ends: list[int], data: st.DataObject, first: int, length: int) -> None:
    """Roll up hours at random times. The batch of a window is its index in the list."""
    rolls, sealed = dict[int, tuple[Rollup, list[int]]](), data.draw(st.sets(st.integers(0, 2)))
    rolled_up = {day: dict[int, int]() for day in range(3)}
    for batch, end in enumerate(ends, 1):
        if data.draw(st.booleans()) or batch == len(ends):
            day, hour = end * MINUTE_NS // DAY_NS, hour_of(end * MINUTE_NS)
            last = rolled_up[day].get(hour, 0)
            inside = [
                other
                for other, at in enumerate(ends[:batch], 1)
                if other > last and (at * MINUTE_NS // DAY_NS, hour_of(at * MINUTE_NS)) == (day, hour)
            ]
            number = len(rolls) + 1
            rolls[number] = Rollup(day, hour, number, max(inside)), inside
            rolled_up[day][hour] = max(inside)
    chosen = SampleQuery("t", "cpu", first * MINUTE_NS, (first + length) * MINUTE_NS)
    found = choose_rollups(chosen, (roll for roll, _ in rolls.values()), sealed)
    counted = Counter(window for number in found.rolls for window in rolls[number][1])
    for batch, end in enumerate(ends, 1):
        end_ns = end * MINUTE_NS
        asked = chosen.from_ns < end_ns <= chosen.to_ns
        day, hour = end_ns // DAY_NS, hour_of(end_ns)
        alone = batch > found.upto.get((day, hour), 0)
        whole = chosen.from_ns <= hour * HOUR_NS and (hour + 1) * HOUR_NS <= chosen.to_ns
        if asked:
            assert counted[batch] + alone == 1
            assert not (alone and day in sealed and batch <= rolled_up[day].get(hour, 0)), (
                "its rows by windows are gone"
            )
        else:
            assert counted[batch] == 0 or day in sealed, (
                "of parts of hours all rows by hours are looked at by their ends"
            )
        if counted[batch] and day not in sealed:
            assert whole
            assert chosen.length_ns >= MIN_NS


class Told:
    """An engine that records its statements.

    Attributes:
        told: The statements.
        _sums: Results for sums of raw rows and of rollups, one after another.
    """

    dialect = Dialect("c")

    def __init__(self, *sums: list[list[Any]]) -> None:
        self.told: list[str] = []
        self._sums = iter(sums)

    def run(self, sql: str) -> None:
        self.told.append(sql)

    def put(self, sql: str) -> None:
        self.told.append(sql)

    def rows(self, sql: str, patience_s: float = 0) -> list[list[Any]]:
        return next(self._sums) if "sum(value), sum" in sql or "sum(amount), sum" in sql else [[7, 9]]

    def insert(self, table: str, block: Block) -> None: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


HOUR = WindowsOfHour("2026-01-02", 490_000, 7, 0, 0)


def test_hour_is_not_listed_where_its_sums_are_others() -> None:
    engine = Told([["10", "2"]], [["9", "2"]])
    with pytest.raises(StoreError, match="the sums of samples by hours"):
        HourlyRollups(engine).roll(HOUR)
    assert not any("INTO rolls" in told for told in engine.told)


def test_hour_is_listed_last_with_its_last_batch() -> None:
    engine = Told(*[[["10", "2"]]] * 4)
    HourlyRollups(engine).roll(HOUR)
    assert [told.split(" (")[0] for told in engine.told] == [
        "INSERT INTO hour_samples_all",
        "INSERT INTO hour_builds_all",
        "INSERT INTO rolls_all",
    ]
    assert engine.told[-1].startswith("INSERT INTO rolls_all (day, hour, roll, upto, windows) VALUES ('2026-01-02', 49")
    assert engine.told[-1].endswith(", 9, 7)")


class Due(Told):
    """An engine for which an hour is due.

    Attributes:
        listed: Event that is set when the hour is rolled up.
    """

    def __init__(self) -> None:
        super().__init__(*[[["10", "2"]]] * 4)
        self.listed = threading.Event()

    def put(self, sql: str) -> None:
        super().put(sql)
        if "INTO rolls" in sql:
            self.listed.set()

    def rows(self, sql: str, patience_s: float = 0) -> list[list[Any]]:
        if "SELECT tenant, segment" in sql:
            return []
        if "GROUP BY day" in sql:
            return [["2026-01-02", 490_000, 7]] if "end_ns <=" in sql else []
        return super().rows(sql)


def test_index_rolls_up_hours_that_are_due(tmp_path: Path) -> None:
    engine, files = Due(), SegmentFiles(str(tmp_path / "data"))
    retention = Retention(1e9, 1 << 40, 1e9)
    indexer = Indexer(files, Store(engine), TenantStackCaches(), retention, lambda *_, **_words: None, lambda _: None)
    indexer.start()
    assert engine.listed.wait(60)
    indexer.close()
    files.close()
