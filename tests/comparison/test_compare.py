"""Tests of comparisons of profiles: amounts, scaling, results and refusals."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings

import pyprof
from pyprof.comparison import compare as comparing
from pyprof.errors import OutputError, UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.function_costs import costs
from pyprof.model.analysis.merge import merge
from pyprof.model.profile import Profile, ValueType
from tests.comparison.simulated import SHARES, recording
from tests.exporters.profiles import golden, profiles


@given(profiles())
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=20)
def test_amounts_are_the_costs_of_either_profile(profile: Profile) -> None:
    if profile.values.size and profile.total:
        found = profile.diff(profile, normalize="none")
        expected = costs(profile)
        assert (found.whole.before, found.whole.after) == (expected.value, expected.value)
        assert sum(change.own.before for change in found.functions) == sum(cost.own for cost in expected.functions)
        assert sum(change.total.after for change in found.functions) <= sum(cost.total for cost in expected.functions)
        assert not any(change.significant or change.own.change or change.total.change for change in found.functions)
        assert found.top() == []


def test_each_way_of_scaling_divides_by_what_it_says() -> None:
    before, after = recording(0, 30), recording(1, 60)
    by = {way: before.diff(after, normalize=way).whole for way in ("time", "samples", "none")}
    assert by["none"].before == before.total
    assert by["time"].after == pytest.approx(after.total / 60)
    assert (by["samples"].before, by["samples"].after) == (1, 1)
    work = before.diff(after, per=(10, 40)).whole
    assert (work.before, work.after) == (before.total / 10, after.total / 40)
    assert before.diff(after).scale.way == "time"


def test_two_ranges_of_one_recording_are_compared() -> None:
    whole = recording(0)
    found = whole.cut(0, 20).diff(whole.cut(20))
    assert (found.before.duration_ns, found.after.duration_ns) == (20 * 10**9, 40 * 10**9)
    assert found.after.start_ns == whole.start_ns + 20 * 10**9
    assert found.whole.before == pytest.approx(found.whole.after, rel=0.1)
    assert len(found.before.stack) + len(found.after.stack) == len(whole.stack)


def test_time_in_which_nothing_was_recorded_is_not_compared() -> None:
    whole, slower = recording(0), recording(1, shares=SHARES | {"slowed": 1.5 * SHARES["slowed"]})
    first, second = whole.cut(0, 30), whole.cut(30)
    later = replace(second, start_ns=second.start_ns + 10**13, time_ns=second.time_ns + 10**13)
    found, expected = merge([first, later]).diff(slower), whole.diff(slower)
    assert found.whole.before == pytest.approx(expected.whole.before, rel=0.001)
    marked = [change.name for change in found.functions if change.own.significant]
    assert marked == [change.name for change in expected.functions if change.own.significant] == ["slowed"]


def test_top_has_what_is_sure_first_and_grown_says_what_grew() -> None:
    more, less = 2 * SHARES["slowed"], 0.5 * SHARES["middle"]
    found = recording(0).diff(recording(1, shares=SHARES | {"slowed": more, "middle": less}), per=(1, 1))
    assert [change.name for change in found.top(2)] == ["slowed", "middle"]
    assert found.top(1, by="total")[0].name == "slowed"
    assert [change.name for change in found.grown(0.05)] == ["slowed", "main"]
    assert [change.name for change in found.grown(0.3)] == ["slowed"]


def test_result_is_a_table_and_a_file(tmp_path: Path) -> None:
    found = recording(0).diff(recording(1, shares=SHARES | {"slowed": 0.4}))
    frame = found.to_dataframe()
    assert set(frame[frame["own_significant"]]["function"]) == {"slowed"}
    found.save(tmp_path / "a.json")
    document = orjson.loads((tmp_path / "a.json").read_bytes())
    assert document["scale"]["way"] == "time"
    assert document["functions"][0]["name"] == "slowed"
    assert document["functions"][0]["own"]["significant"] is True
    found.save(tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as text:
        rows = list(csv.DictReader(text))
    assert [row["function"] for row in rows] == [change.name for change in found.functions]
    assert float(rows[0]["own_after"]) == pytest.approx(found.functions[0].own.after)


def test_names_that_a_spreadsheet_would_run_are_text(tmp_path: Path) -> None:
    shares = {'=cmd|"/C calc"!A0': 0.5, "-1+1": 0.5}
    found = recording(0, shares=shares, bursts={}).diff(recording(1, shares=shares, bursts={}))
    found.save(tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as text:
        assert {row["function"][0] for row in csv.DictReader(text)} == {"'", "m"}


def test_what_cannot_be_compared_is_said() -> None:
    one = recording(0, 5)
    wall = replace(one, value_types=(ValueType("samples", "count"), ValueType("wall", "nanoseconds")))
    nothing = one.filter(thread="nobody")
    negative = replace(one, values=-one.values)
    for after, keywords, complaint in (
        (wall, {}, "cpu .nanoseconds., the other wall"),
        (nothing, {}, "no samples"),
        (negative, {}, "negative values"),
        (one, {"per": (0, 1)}, "positive numbers"),
        (one, {"per": (1, 1), "normalize": "time"}, "already normalized"),
        (one, {"normalize": "rows"}, "not normalized by 'rows'"),
        (one, {"least": 1.0}, "smallest change is a fraction"),
        (one, {"drift": 1.0}, "drift is a fraction"),
        (replace(one, duration_ns=0), {"normalize": "time"}, "length of a recording"),
    ):
        with pytest.raises(UsageError, match=complaint):
            one.diff(after, **keywords)
    with pytest.raises(UsageError, match="no time"):
        one.cut(9)
    with pytest.raises(UsageError, match="'docx'"):
        one.diff(one).save("a", "docx")
    with pytest.raises(OutputError):
        one.diff(one).save("/proc/nowhere/a.json")


def test_files_without_times_are_compared_by_samples_and_nothing_is_marked(tmp_path: Path) -> None:
    golden().save(tmp_path / "a.collapsed")
    stacks = pyprof.load(tmp_path / "a.collapsed")
    found = stacks.diff(golden())
    assert (found.scale.way, found.value_type) == ("samples", ValueType("samples", "count"))
    assert "not known when" in found.doubt
    assert not any(change.significant for change in found.functions)
    assert math.isclose(found.whole.after, 1)


def test_more_functions_than_are_judged_are_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_MAX_JUDGED", 3)
    found = recording(0).diff(recording(1, shares=SHARES | {"slowed": 0.4}))
    assert [change.name for change in found.functions if change.own.significant] == ["slowed"]
    assert len(found.functions) == len(SHARES) + 21


def test_deep_recursion_counts_each_sample_once() -> None:
    base = recording(0, 5, {"slowed": 1.0}, {})
    depth = 5000
    deep = replace(
        base,
        parent=np.array([-1, *range(depth)], np.int32),
        frame=np.array([-1, 0, *[1] * (depth - 1)], np.int32),
        stack=np.full(len(base.stack), depth, np.int32),
    )
    found = {change.name: change.total.before for change in deep.diff(deep, normalize="none").functions}
    assert found == {"main": deep.total, "slowed": deep.total}
