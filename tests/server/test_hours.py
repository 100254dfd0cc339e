"""Rows of old days by hours: what is done to the tables. tests/server/test_stores.py asks before and after."""

from __future__ import annotations

from typing import Any

import pytest

from pyprof.server.engine import StoreError
from pyprof.server.hours import Hours
from pyprof.server.native import Block
from pyprof.server.tables import Dialect


class Told:
    """An engine that keeps what it is told. sums: of the rows before, and by hours."""

    dialect = Dialect("c")

    def __init__(self, *sums: list[list[Any]]) -> None:
        self.told: list[str] = []
        self._sums = iter(sums)

    def run(self, sql: str) -> None:
        self.told.append(sql)

    def put(self, sql: str) -> None:
        self.told.append(sql)

    def rows(self, sql: str) -> list[list[Any]]:
        return next(self._sums) if "sum(value), sum" in sql or "sum(amount), sum" in sql else [[7, 7]]

    def insert(self, table: str, block: Block) -> None: ...

    def close(self) -> None: ...


def test_day_keeps_its_rows_where_the_sums_by_hours_are_others() -> None:
    engine = Told([["10", "2"]], [["9", "2"]])
    with pytest.raises(StoreError, match="the sums of samples by hours"):
        Hours(engine).roll("2026-01-02")
    assert not any("REPLACE" in told or "INTO rolled" in told for told in engine.told)


def test_rows_of_an_attempt_that_was_killed_are_dropped_before_others_come() -> None:
    engine = Told(*[[["10", "2"]]] * 4)
    Hours(engine).roll("2026-01-02")
    words = [" ".join(word for word in told.split() if word.isupper() or "hours" in word) for told in engine.told]
    drop = "ALTER TABLE samples_hours ON CLUSTER DROP PARTITION"
    assert words[0] == words[4] == drop, words
    assert [told.split(" (")[0] for told in engine.told[1:3]] == ["INSERT INTO samples_hours_all"] * 2
    assert engine.told[3] == "ALTER TABLE samples ON CLUSTER c REPLACE PARTITION '2026-01-02' FROM samples_hours"
    assert engine.told[-1] == "INSERT INTO rolled_all (day, windows) VALUES ('2026-01-02', 7)"
