"""Tests that the queries of docs/sql.md run and return what their descriptions say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.merge import merge
from pyprof.model.interpreter_frames import SampleState
from pyprof.model.marker_frames import cut_mark
from pyprof.model.profile import Frame, FrameKind, Line, Profile
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.recording.sql_views import open_query
from tests.exporters.profiles import LIBC, PERIOD_NS, STRIPPED, Builder, code, golden, marker
from tests.recording.support import stored

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
QUERIES = re.findall(r"\n([^\n]+):\n\n```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


CUT = cut_mark(StackEnd.NO_RULE, 0)


def waits() -> Profile:
    """Return a profile with a waiting thread, a truncated stack, and a stack that ends in an inlined function."""
    builder = Builder()
    wait = Frame(FrameKind.KERNEL, 0, 0, 0, -1, (), Trust.KERNEL, "[sleeping: futex]")
    builder.sample(builder.node([code("main"), code("lock"), wait]))
    builder.sample(builder.node([replace(marker(CUT.title), mark=CUT), code("lock"), wait]), cpu_ns=3 * PERIOD_NS)
    (inlined,) = (frame for frame in golden().frames if len(frame.lines) > 1)
    builder.sample(builder.node([code("main"), inlined]))
    later = Line("named_later", "named_later", later=True)
    builder.sample(builder.node([code("main"), replace(code("", rel=0x666), lines=(later,), title=later.function)]))
    started = Line("libc.so.6!0x28a0", "", 0x20)  # a function known by its start only
    builder.sample(builder.node([code("main"), replace(code("", 0, 0x28C0), lines=(started,), title=started.function)]))
    return builder.build()


@pytest.fixture(scope="module")
def profile() -> Profile:
    profile = merge([golden(), waits()])
    n = len(profile.stack)
    state = np.where(np.arange(n) % 4, 0, SampleState.STOPPED | SampleState.INTERPRETED).astype(np.int32)
    return replace(profile, state=state, cpu=np.arange(n, dtype=np.int32) % 4)


@pytest.fixture(scope="module")
def recording(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(profile, tmp_path_factory.mktemp("recording"))


def rows(recording: Path, start: str) -> list[tuple[Any, ...]]:
    """Return the rows of the query whose description starts with this text."""
    (query,) = (query for what, query in QUERIES if what.startswith(start))
    with open_query(recording) as database:
        return database.execute(query).fetchall()


def test_every_query_of_the_page_was_found() -> None:
    assert len(QUERIES) == PAGE.read_text().count("```sql") == 19


@pytest.mark.parametrize(("what", "query"), QUERIES, ids=[what for what, _ in QUERIES])
def test_query_of_the_page_gives_rows(what: str, query: str, recording: Path) -> None:
    with open_query(recording) as database:
        assert database.execute(query).fetchall(), what


def test_functions_that_cost_most_are_those_of_the_profile(profile: Profile, recording: Path) -> None:
    """Compare functions, including inlined ones. Names that a table cannot show are left out."""
    costs = [cost for cost in profile.top(40, by="total") if cost.name.isprintable()]
    with open_query(recording) as database:
        own, total = (QUERIES[nth][1].replace("LIMIT 10", "") for nth in range(2))
        owns, totals = dict(database.execute(own)), dict(database.execute(total))
    assert owns["std::min(int, int)"] == PERIOD_NS / 1e6
    assert {cost.name: cost.own / 1e6 for cost in costs if cost.own}.items() <= owns.items()
    assert {cost.name: cost.total / 1e6 for cost in costs}.items() <= totals.items()


def test_callers_of_a_function_share_its_time(profile: Profile, recording: Path) -> None:
    found = dict(rows(recording, "Who calls a function"))
    assert found == {"parse": 70.0, "std::min(int, int)": 50.0}
    assert sum(found.values()) == next(cost.total for cost in profile.top(20) if cost.name == "memcpy") / 1e6


def test_lines_are_those_of_the_innermost_functions(recording: Path) -> None:
    assert rows(recording, "The source lines") == [
        ("/src/server/parse.cc", 31, 20.0),
        ("/usr/include/c++/algo.h", 233, 10.0),
    ]


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


def test_functions_that_were_named_later_are_told(recording: Path) -> None:
    assert rows(recording, "Functions that were named after") == [("named_later", 1)]


def test_samples_that_no_stop_took_are_the_kernels(profile: Profile, recording: Path) -> None:
    stopped = -(-len(profile.stack) // 4)
    counts = {how: samples for how, samples, _ in rows(recording, "How samples were taken")}
    assert counts == {"by the kernel": len(profile.stack) - stopped, "stopped": stopped}


def test_addresses_without_a_name_are_those_of_no_symbol(recording: Path) -> None:
    assert {(path, rel) for path, _, rel in rows(recording, "Addresses without")} == {
        (STRIPPED.path, "1234"),
        (STRIPPED.path, "77"),
        (LIBC.path, "28c0"),
    }


def test_files_without_symbols_are_those_that_gave_no_name(recording: Path) -> None:
    found = rows(recording, "Object files without symbols")
    assert {row[0] for row in found} == {STRIPPED.path}
    assert "apt-get install libplugin-dbg" in {row[-1] for row in found}


def test_seconds_of_threads_add_up_to_the_whole(profile: Profile, recording: Path) -> None:
    assert sum(row[-1] for row in rows(recording, "The same, second by second")) == profile.total / 1e6
