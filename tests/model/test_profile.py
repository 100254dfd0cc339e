"""Tests of Profile's methods: top functions, call tree, filters, files and tables."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.errors import MissingLibrary, OutputError, UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.function_costs import costs, functions_of
from pyprof.model.analysis.stack_quality import summary_of_part
from pyprof.model.profile import _FUNCTIONS, FrameKind, Profile, find_function
from pyprof.model.summary import Summary
from tests.exporters.profiles import Builder, code, deep, golden, marker, profiles


def stacks(profile: Profile) -> list[tuple[int, int, list[str], list[int]]]:
    """Return (tid, time, names, values) of each sample."""
    return [
        (
            profile.threads[profile.thread[row]].tid,
            int(profile.time_ns[row]),
            [frame.title for frame in profile.path(int(profile.stack[row]))],
            profile.values[row].tolist(),
        )
        for row in range(len(profile.stack))
    ]


@given(profiles())
def test_tree_adds_up_and_has_the_costs_of_all_functions(profile: Profile) -> None:
    root = profile.tree()
    assert root.total == profile.total
    own: dict[str, int] = {}
    for _, call in root.walk():
        assert call.total == call.own + sum(child.total for child in call.children)
        if call.kind != FrameKind.MARKER:
            own[call.name] = own.get(call.name, 0) + call.own
    of_functions: dict[str, int] = {}
    for cost in costs(profile).functions:
        of_functions[cost.name] = of_functions.get(cost.name, 0) + cost.own
    assert {name: value for name, value in own.items() if value} == {name: v for name, v in of_functions.items() if v}


def test_tree_of_a_deep_recursion_is_walked_shown_and_freed() -> None:
    root = deep(depth=30_000, samples=3).tree()
    assert max(depth for depth, _ in root.walk()) > 29_000
    assert len(repr(root)) < 300
    del root


def test_marker_is_a_call_of_its_own() -> None:
    builder = Builder()
    builder.sample(builder.node([marker("[truncated]"), code("inner")]), cpu_ns=7)
    (call,) = builder.build().tree().children
    assert call.kind == FrameKind.MARKER
    assert call.children[0].name == "inner"


def test_top_is_by_own_cost_or_with_calls() -> None:
    profile = golden()
    own, total = profile.top(3), profile.top(3, by="total")
    assert [cost.own for cost in own] == sorted((cost.own for cost in own), reverse=True)
    assert [cost.total for cost in total] == sorted((cost.total for cost in total), reverse=True)
    assert len(own) == len(total) == 3


@given(profiles(), st.data())
def test_part_has_the_samples_that_fit_as_they_were(profile: Profile, data: st.DataObject) -> None:
    profile = replace(profile, summary=summary_of_part(Summary(), profile))
    tids = data.draw(st.sets(st.sampled_from([thread.tid for thread in profile.threads] or [0])))
    part = profile.filter(tid=tids)
    assert stacks(part) == [row for row in stacks(profile) if row[0] in tids]
    assert {thread.tid for thread in part.threads} == {row[0] for row in stacks(part)}
    assert all(part.parent[node] < node for node in range(1, len(part.parent)))
    assert part.summary.shown.total == part.total == sum(part.summary.shown.ends.values())
    assert sum(module.own for module in part.summary.modules) <= part.total


def test_filter_by_function_keeps_stacks_through_it_and_nothing_else() -> None:
    profile = golden()
    frame = next(frame for frame in profile.frames if len(frame.lines) == 3)
    inlined = frame.lines[0].function
    part = profile.filter(function=f"^{re.escape(inlined)}$")
    names = {function.name for f in profile.frames for function, _ in functions_of(profile, f)}
    assert 0 < len(part.stack) < len(profile.stack)
    assert len(part.frames) < len(profile.frames)
    for row in range(len(part.stack)):
        path = part.path(int(part.stack[row]))
        assert inlined in {function.name for f in path for function, _ in functions_of(part, f)}
    assert inlined in names


def test_criteria_are_met_together() -> None:
    profile = golden()
    first = profile.threads[0]
    one = profile.filter(tid=first.tid)
    half = (int(profile.time_ns.max()) - profile.start_ns) / 2e9
    assert len(one.filter(start=half).stack) + len(one.filter(end=half).stack) == len(one.stack)
    assert len(profile.filter(tid=first.tid, thread="no such thread").stack) == 0
    assert len(profile.filter(pid=[t.pid for t in profile.threads]).stack) == len(profile.stack)


def test_nothing_left_is_a_profile_like_any_other(tmp_path: Path) -> None:
    empty = golden().filter(tid=())
    assert empty.total == 0
    assert empty.top() == []
    assert empty.tree().children == ()
    for suffix in ("html", "json", "collapsed", "pb.gz"):
        empty.save(tmp_path / f"a.{suffix}")


def test_save_takes_the_format_of_the_name_or_the_one_that_is_said(tmp_path: Path) -> None:
    profile = golden()
    profile.save(tmp_path / "a.html")
    profile.save(str(tmp_path / "a.pb.gz"))
    profile.save(tmp_path / "odd", format="collapsed", threads=True)
    assert (tmp_path / "a.html").read_text().startswith("<!")
    assert gzip.decompress((tmp_path / "a.pb.gz").read_bytes())
    assert f"(tid {profile.threads[0].tid});" in (tmp_path / "odd").read_text()


def test_save_reports_the_error(tmp_path: Path) -> None:
    profile = golden()
    with pytest.raises(UsageError, match="does not say which format"):
        profile.save(tmp_path / "a.xyz")
    with pytest.raises(UsageError, match="no output format"):
        profile.save(tmp_path / "a.html", format="gif")
    (tmp_path / "b.html").mkdir()
    with pytest.raises(OutputError, match="is a directory"):
        profile.save(tmp_path / "b.html")
    with pytest.raises(OutputError, match="No such file"):
        profile.save(tmp_path / "none" / "a.html")


def test_data_frame_has_a_row_for_each_sample() -> None:
    profile = golden()
    frame = profile.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == len(profile.stack)
    assert frame["cpu_ns"].sum() == profile.total
    assert frame["time"].dt.tz is None
    assert (frame["time"].astype("int64").to_numpy() == profile.time_ns).all()
    dearest = profile.top(1)[0]
    assert frame.groupby("function")["cpu_ns"].sum()[dearest.name] >= dearest.own
    assert frame["stack"].str.count(";").max() >= 2


def test_missing_library_of_data_frames_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyprof.model.analysis.data_frame.find_spec", lambda name: None)
    with pytest.raises(MissingLibrary, match="needs pandas or polars, which") as found:
        golden().to_dataframe()
    assert found.value.hint == "pip install pandas"
    with pytest.raises(ImportError, match="polars"):
        golden().to_dataframe("polars")
    with pytest.raises(UsageError):
        golden().to_dataframe("excel")  # type: ignore[arg-type]


def test_repr_is_one_line() -> None:
    assert repr(golden()).startswith("<Profile ")
    assert len(repr(golden())) < 120


def test_values_find_each_function_of_a_higher_layer_in_its_module() -> None:
    places = {name: find_function(name).__module__ for name in _FUNCTIONS}
    assert places == _FUNCTIONS
