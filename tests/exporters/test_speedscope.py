"""Tests of speedscope files: the application's schema, constraints beyond the schema, and totals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from jsonschema import Draft7Validator

from pyprof.errors import OutputError
from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile, ValueType
from tests.exporters.profiles import Builder, code, deep, golden, profiles
from tests.exporters.support import PLAIN, PROCESSES, THREADS, export

SCHEMA = Path(__file__).parent.parent / "fixtures" / "speedscope" / "file-format-schema.json"
VALIDATOR = Draft7Validator(json.loads(SCHEMA.read_text()))


def document(profile: Profile, options: ExportOptions = PLAIN) -> dict[str, Any]:
    """Return the file after all checks that speedscope makes when it loads one."""
    read: dict[str, Any] = json.loads(export("speedscope", profile, options))
    VALIDATOR.validate(read)
    for entry in read["profiles"]:
        assert len(entry["samples"]) == len(entry["weights"])
        assert all(weight > 0 for weight in entry["weights"])
        assert all(0 <= at < len(read["shared"]["frames"]) for sample in entry["samples"] for at in sample)
        assert entry["endValue"] == sum(entry["weights"])
    assert 0 <= read["activeProfileIndex"] < len(read["profiles"])
    return read


def stacks(read: dict[str, Any], profile: int = 0) -> list[list[str]]:
    names = [frame["name"] for frame in read["shared"]["frames"]]
    return [[names[at] for at in sample] for sample in read["profiles"][profile]["samples"]]


def test_one_profile_holds_all_threads_each_in_its_time_order() -> None:
    read = document(golden())
    assert [entry["name"] for entry in read["profiles"]] == ["all 4 threads"]
    found = stacks(read)
    main_thread = [stack[-1] for stack in found[:11]]
    assert main_thread[:4] == ["memcpy", "memcpy", "parse", "do_sys"]
    assert all(stack[:2] == ["clone", "work"] for stack in found[11:17])


def test_each_thread_has_its_profile_when_asked_for_and_the_heaviest_is_shown() -> None:
    read = document(golden(), THREADS)
    assert [entry["name"] for entry in read["profiles"]] == [
        "server (pid 100): main (tid 100)",
        "server (pid 100): worker;1 (tid 101)",
        f"server (pid 100): {golden().threads[2].name} (tid 102)",
        "child (pid 200): thread (tid 200)",
    ]
    assert read["activeProfileIndex"] == 0


def test_each_process_has_its_profile_where_there_are_several() -> None:
    read = document(golden(), PROCESSES)
    assert [entry["name"] for entry in read["profiles"]] == ["server (pid 100)", "child (pid 200)"]
    whole = document(golden())["profiles"][0]
    assert sum(entry["endValue"] for entry in read["profiles"]) == whole["endValue"]


def test_weights_are_nanoseconds_and_sleeping_samples_are_left_out() -> None:
    entry = document(golden())["profiles"][0]
    assert entry["unit"] == "nanoseconds"
    assert entry["endValue"] == golden().values[:, 1].sum()
    assert len(entry["samples"]) == len(golden().stack) - 1


def test_counts_have_no_unit() -> None:
    profile = replace(golden(), value_types=(ValueType("samples", "count"),), values=golden().values[:, :1])
    entry = document(profile)["profiles"][0]
    assert (entry["unit"], entry["endValue"]) == ("none", len(profile.stack))


def test_inlined_functions_follow_their_function_and_carry_file_and_line() -> None:
    read = document(golden())
    assert ["_start", "main", "handle(Request&)", "clamp", "std::min(int, int)", "memcpy"] in stacks(read)
    frames = {frame["name"]: frame for frame in read["shared"]["frames"]}
    assert frames["clamp"] == {"name": "clamp", "file": "/src/server/util.h", "line": 17}
    assert frames["memcpy"] == {"name": "memcpy", "file": "libc.so.6"}


def test_function_on_several_lines_stays_one_frame_without_a_line() -> None:
    frames = document(golden())["shared"]["frames"]
    assert [frame for frame in frames if frame.get("file") == "/src/server/parse.cc"] == [
        {"name": "parse", "file": "/src/server/parse.cc"}
    ]


def test_negative_weights_are_refused() -> None:
    profile = replace(golden(), values=-golden().values)
    with pytest.raises(OutputError, match="negative"):
        export("speedscope", profile)


def test_empty_profile_and_one_without_weight_are_valid() -> None:
    builder = Builder()
    assert document(builder.build(), THREADS)["profiles"][0]["samples"] == []
    builder.sample(builder.node([code("main")]), cpu_ns=0)
    assert document(builder.build(), THREADS)["profiles"][0]["samples"] == []


def test_deep_stack_is_whole() -> None:
    assert max(len(sample) for sample in document(deep())["profiles"][0]["samples"]) == 20_000


@given(profiles())
def test_weights_add_up_for_each_thread(profile: Profile) -> None:
    assert document(profile)["profiles"][0]["endValue"] == profile.values[:, 1].sum()
    read = document(profile, THREADS)
    sums = [int(profile.values[profile.thread == at, 1].sum()) for at in range(len(profile.threads))]
    assert [entry["endValue"] for entry in read["profiles"]] == ([s for s in sums if s] or [0])


@given(profiles())
def test_stacks_are_those_of_the_profile(profile: Profile) -> None:
    order = np.argsort(profile.thread, kind="stable")
    order = order[profile.values[order, 1] > 0]
    expected = [sum(max(len(f.lines), 1) for f in profile.path(leaf)) for leaf in profile.stack[order].tolist()]
    assert [len(sample) for sample in document(profile)["profiles"][0]["samples"]] == expected


@pytest.mark.parametrize("at_once", [1, 2, 17, 18])
def test_samples_written_a_few_at_a_time_make_the_same_file(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    whole = export("speedscope", golden(), PLAIN)
    assert len(stacks(document(golden()))) > 18
    monkeypatch.setattr("pyprof.exporters.speedscope._AT_ONCE", at_once)
    assert export("speedscope", golden(), PLAIN) == whole
