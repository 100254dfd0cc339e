"""docs/recording.md: its tables are those of the schema, and its queries run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pyprof.recording.query import queried
from pyprof.recording.schema import SCHEMA, tables
from pyprof.records import replace
from tests.exporters.profiles import golden
from tests.recording.manual import PAGE, page
from tests.recording.support import stored

QUERIES = re.findall(r"\n([^\n]+):\n\n```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    profile = golden()
    n = len(profile.stack)
    profile = replace(profile, state=np.zeros(n, np.int32), cpu=np.arange(n, dtype=np.int32) % 4)
    return stored(profile, tmp_path_factory.mktemp("recording"))


def test_tables_of_the_page_are_those_of_the_schema() -> None:
    assert page() == PAGE.read_text()
    assert len(tables()) == SCHEMA.count("CREATE TABLE")
    described = sum(len(table.columns) for table in tables().values())
    assert described == len(re.findall(r"^  (?!PRIMARY)\S.*-- .", SCHEMA, re.MULTILINE))


def test_there_are_ten_queries() -> None:
    assert len(QUERIES) == 10


@pytest.mark.parametrize(("what", "query"), QUERIES, ids=[what for what, _ in QUERIES])
def test_query_of_the_page_gives_rows(what: str, query: str, recording: Path) -> None:
    with queried(recording) as database:
        assert database.execute(query).fetchall(), what


def test_functions_of_the_first_query_are_those_of_the_profile(recording: Path) -> None:
    with queried(recording) as database:
        found = dict(database.execute(QUERIES[0][1]).fetchall())
        (total,) = database.execute("SELECT sum(value) FROM samples").fetchone()
    costs = {cost.name: cost.own / 1e6 for cost in golden().top(10) if "memcpy" in cost.name or cost.name == "poll"}
    assert costs
    assert costs.items() <= found.items()
    assert total == golden().total


def test_total_query_counts_each_sample_once(recording: Path) -> None:
    with queried(recording) as database:
        found = dict(database.execute(QUERIES[1][1]).fetchall())
    assert found["main"] == next(cost.total for cost in golden().top(20, by="total") if cost.name == "main") / 1e6
