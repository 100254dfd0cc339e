"""docs/recording.md: its tables are those of the schema, and its queries run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyprof.model.markers import cut_mark
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.model.several import merge
from pyprof.model.walk import StackEnd, Trust
from pyprof.recording.query import queried
from pyprof.recording.schema import SCHEMA, tables
from pyprof.records import replace
from tests.exporters.profiles import PERIOD_NS, STRIPPED, Builder, code, golden, marker
from tests.recording.manual import PAGE, page
from tests.recording.support import stored

QUERIES = re.findall(r"\n([^\n]+):\n\n```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


CUT = cut_mark(StackEnd.NO_RULE, 0)


def waits() -> Profile:
    """A thread that waits, and a stack that is cut off."""
    builder = Builder()
    wait = Frame(FrameKind.KERNEL, 0, 0, 0, -1, (), Trust.KERNEL, "[sleeping: futex]")
    builder.sample(builder.node([code("main"), code("lock"), wait]))
    builder.sample(builder.node([replace(marker(CUT.title), mark=CUT), code("lock"), wait]), cpu_ns=3 * PERIOD_NS)
    return builder.build()


@pytest.fixture(scope="module")
def profile() -> Profile:
    profile = merge([golden(), waits()])
    n = len(profile.stack)
    return replace(profile, state=np.zeros(n, np.int32), cpu=np.arange(n, dtype=np.int32) % 4)


@pytest.fixture(scope="module")
def recording(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(profile, tmp_path_factory.mktemp("recording"))


def rows(recording: Path, start: str) -> list[tuple[Any, ...]]:
    """Of the query whose sentence starts so."""
    (query,) = (query for what, query in QUERIES if what.startswith(start))
    with queried(recording) as database:
        return database.execute(query).fetchall()


def test_tables_of_the_page_are_those_of_the_schema() -> None:
    assert page() == PAGE.read_text()
    assert len(tables()) == SCHEMA.count("CREATE TABLE")
    described = sum(len(table.columns) for table in tables().values())
    assert described == len(re.findall(r"^  (?!PRIMARY)\S.*-- .", SCHEMA, re.MULTILINE))


def test_every_query_of_the_page_was_found() -> None:
    assert len(QUERIES) == PAGE.read_text().count("```sql") == 17


@pytest.mark.parametrize(("what", "query"), QUERIES, ids=[what for what, _ in QUERIES])
def test_query_of_the_page_gives_rows(what: str, query: str, recording: Path) -> None:
    with queried(recording) as database:
        assert database.execute(query).fetchall(), what


def test_functions_of_the_first_query_are_those_of_the_profile(profile: Profile, recording: Path) -> None:
    found = dict(rows(recording, "The functions that cost most"))
    costs = {cost.name: cost.own / 1e6 for cost in profile.top(10) if "memcpy" in cost.name or cost.name == "poll"}
    assert costs
    assert costs.items() <= found.items()


def test_total_query_counts_each_sample_once(profile: Profile, recording: Path) -> None:
    found = dict(rows(recording, "With what they call"))
    assert found["main"] == next(cost.total for cost in profile.top(20, by="total") if cost.name == "main") / 1e6


def test_callers_of_a_function_share_its_time(profile: Profile, recording: Path) -> None:
    found = dict(rows(recording, "Who calls a function"))
    assert found == {"parse": 70.0, "handle(Request&)": 50.0}
    assert sum(found.values()) == next(cost.total for cost in profile.top(20) if cost.name == "memcpy") / 1e6


def test_lines_are_those_of_the_innermost_functions(recording: Path) -> None:
    assert rows(recording, "The source lines") == [("/src/server/parse.cc", 31, 20.0)]


def test_halves_together_are_the_whole(profile: Profile, recording: Path) -> None:
    found = {name: (after, before) for name, after, before in rows(recording, "What functions had more of")}
    middle = (int(profile.time_ns.min()) + int(profile.time_ns.max())) // 2
    memcpy = [
        value
        for time_ns, stack, value in zip(profile.time_ns, profile.stack, profile.values[:, -1], strict=True)
        if time_ns >= middle and profile.frames[profile.frame[stack]].title == "memcpy"
    ]
    assert memcpy
    assert found["memcpy"] == (sum(memcpy) / 1e6, 120.0 - sum(memcpy) / 1e6)


def test_waits_and_cut_stacks_have_their_reasons(recording: Path) -> None:
    assert rows(recording, "What threads wait in") == [("[sleeping: futex]", 40.0, 1)]
    assert rows(recording, "Why stacks are cut off") == [("no_rule", 1, 30.0)]


def test_files_without_symbols_are_those_that_gave_no_name(recording: Path) -> None:
    found = rows(recording, "Object files without symbols")
    assert {row[0] for row in found} == {STRIPPED.path}
    assert "apt-get install libplugin-dbg" in {row[-1] for row in found}


def test_seconds_of_threads_add_up_to_the_whole(profile: Profile, recording: Path) -> None:
    assert sum(row[-1] for row in rows(recording, "The same, second by second")) == profile.total / 1e6
