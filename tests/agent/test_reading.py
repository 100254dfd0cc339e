"""Tests of the conversion of profiles to segments and back: nothing is lost, and a broken segment loses only itself."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from pyprof.errors import FormatError, PyprofError
from pyprof.fleet.agent.process_rules import NOT_RECORDED, RuleVerdict
from pyprof.fleet.agent.spool_query import parts, profile_of, rooted, segments, services
from pyprof.fleet.agent.spool_status import state
from pyprof.fleet.agent.windows import labelled
from pyprof.fleet.agent.windows import segments as split
from pyprof.fleet.toml_config_files import TimeSpan
from pyprof.importers import pprof_tables
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Profile, ValueType
from pyprof.problem_counters import Problem
from tests.agent.filled import MINUTE_NS, marked, opened, segment
from tests.exporters.profiles import golden
from tests.exporters.support import export

END = 1_700_000_040 * 10**9
ALL = TimeSpan(0, 2 * END)


def of(folder: Path, span: TimeSpan = ALL, mode: str = "cpu", **how: bool) -> Profile:
    return profile_of(str(folder), segments(str(folder), span), mode, "x", **how)


def test_merged_segments_are_the_profiles_together(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.store_window([segment(golden(), "web", END + minute * MINUTE_NS) for minute in range(3)])
    found = of(tmp_path)
    assert found.total == 3 * golden().total
    assert {cost.name: cost.own for cost in found.top(99)} == {
        cost.name: 3 * cost.own for cost in of(tmp_path, TimeSpan(END - 1, END)).top(99)
    }
    assert (found.start_ns, found.duration_ns) == (END - MINUTE_NS, 3 * MINUTE_NS)
    assert sorted(set(found.time_ns.tolist())) == [END + minute * MINUTE_NS for minute in (-1, 0, 1)]
    assert found.summary.skipped == 3 * golden().summary.skipped
    assert found.labels == golden().labels


def test_how_frames_were_found_and_stacks_ended_comes_back(tmp_path: Path) -> None:
    opened(tmp_path).store_window([segment(marked(), "web", END)])
    found, wanted = of(tmp_path), marked()
    assert sum(found.summary.trust.values()) > 10
    assert len({frame.trust for frame in wanted.frames}) > 2
    trust = {(frame.title, frame.kind, frame.trust) for frame in wanted.frames if frame.lines}
    assert {(frame.title, frame.kind, frame.trust) for frame in found.frames} >= trust
    assert found.summary.errors == wanted.summary.errors
    assert found.summary.stops == wanted.summary.stops
    marks = {frame.mark for frame in wanted.frames if frame.mark is not None}
    assert len(marks) > 1
    assert {frame.mark for frame in found.frames if frame.mark is not None} == marks


def test_others_read_the_same_without_the_evidence() -> None:
    from tests.exporters.pprof_reader import read

    plain, ours = read(export("pprof", golden())), read(segment(golden(), "web", END).data)
    assert [sample[1:] for sample in ours.samples] == [sample[1:] for sample in plain.samples]
    assert sorted(ours.functions) == sorted(plain.functions)


def test_segment_belongs_to_the_moment_of_its_end(tmp_path: Path) -> None:
    opened(tmp_path).store_window([segment(golden(), "web", END + minute * MINUTE_NS) for minute in range(3)])
    span = TimeSpan(END, END + MINUTE_NS)
    assert [name.end_ns for name in segments(str(tmp_path), span)] == [END + MINUTE_NS]
    assert segments(str(tmp_path), ALL, ["w*", "x"])
    assert not segments(str(tmp_path), ALL, ["w"])


def test_time_without_windows_does_not_count_where_costs_are_by_time(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.store_window([segment(golden(), service, END) for service in ("a", "b")])
    spool.store_window([segment(golden(), "a", END + 50 * MINUTE_NS)])
    found = of(tmp_path, gapless=True)
    assert found.duration_ns == 2 * MINUTE_NS
    assert sorted(set((found.time_ns - found.start_ns).tolist())) == [0, MINUTE_NS]
    assert of(tmp_path).duration_ns == 51 * MINUTE_NS


def test_broken_segment_costs_itself_and_is_named(tmp_path: Path) -> None:
    opened(tmp_path).store_window([segment(golden(), "web", END + minute * MINUTE_NS) for minute in range(3)])
    broken = sorted(tmp_path.glob("20*/web/*"))[1]
    broken.write_bytes(broken.read_bytes()[:-20])
    found = of(tmp_path)
    assert found.total == 2 * golden().total
    assert any(broken.name in note.text for note in found.summary.notes)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


@pytest.mark.parametrize("number", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize(("field", "before"), [(9, END), (10, MINUTE_NS)], ids=["time", "duration"])
def test_segment_whose_times_no_clock_has_costs_itself(field: int, before: int, number: int, tmp_path: Path) -> None:
    spool = opened(tmp_path)
    good, bad = segment(golden(), "web", END), segment(golden(), "web", END + MINUTE_NS)
    told, tag = gzip.decompress(bad.data), bytes([field << 3])
    assert told.count(tag + varint(before)) == 1
    spool.store_window(
        [good, replace(bad, data=gzip.compress(told.replace(tag + varint(before), tag + varint(number))))]
    )
    found = of(tmp_path)
    assert found.total == golden().total
    assert found.start_ns == END - MINUTE_NS
    assert any(bad.name.path in note.text for note in found.summary.notes)


def test_segment_whose_values_are_too_large_together_costs_itself(tmp_path: Path) -> None:
    good = golden()
    huge = replace(good, values=np.full_like(good.values, (1 << 62) // len(good.values)))
    opened(tmp_path).store_window([segment(good, "web", END), segment(huge, "web", END + MINUTE_NS)])
    found = of(tmp_path)
    assert found.total == good.total
    assert any("too large together" in note.text for note in found.summary.notes)


def test_modes_are_not_mixed(tmp_path: Path) -> None:
    waits = replace(golden(), value_types=(ValueType("samples", "count"), ValueType("offcpu", "nanoseconds")))
    opened(tmp_path).store_window([segment(golden(), "web", END), segment(waits, "web", END)])
    assert of(tmp_path).total == of(tmp_path, mode="offcpu").total == golden().total
    with pytest.raises(PyprofError, match="no segment has wall samples") as caught:
        of(tmp_path, mode="wall")
    assert caught.value.hint == "--mode cpu or offcpu"


def test_window_is_split_by_service_and_services_that_slept_have_a_segment(tmp_path: Path) -> None:
    profile = golden()
    pids = sorted({thread.pid for thread in profile.threads})
    assert len(pids) > 1
    verdicts = {pids[0]: RuleVerdict("first", (("service", "first"), ("v", "1")))}
    found = split(labelled(profile, lambda pid, _: verdicts.get(pid, NOT_RECORDED)), {"first": set(), "asleep": set()})
    assert [each.name.service for each in found] == ["asleep", "first", "other"]
    opened(tmp_path).store_window(found)
    assert services(str(tmp_path)) == ["asleep", "first", "other"]
    assert of(tmp_path).total == profile.total
    total = {value: part.total for value, part in parts(of(tmp_path), "service")}
    assert total["first"] == profile.filter(pid=pids[0]).total
    assert sum(total.values()) == profile.total
    assert [each.service for each in state(str(tmp_path), ALL).services] == ["asleep", "first", "other"]


def test_value_of_a_label_is_the_root_of_its_stacks() -> None:
    lines = export("collapsed", rooted(golden(), "process")).decode().splitlines()
    assert len(lines) > 5
    assert all(line.startswith("[process: ") for line in lines)
    plain = export("collapsed", golden()).decode().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == sum(int(line.rpartition(" ")[2]) for line in plain)


def test_status_names_files_without_names_of_functions(tmp_path: Path) -> None:
    frames = (replace(frame, lines=()) if frame.title == "memcpy" else frame for frame in marked().frames)
    problems = (Problem("no symbols: only exported names", "apt-get install libc6-dbg"), Problem("other", ""))
    modules = tuple(
        replace(each, problems=problems if each.path.endswith("libc.so.6") else ()) for each in marked().summary.modules
    )
    summary = replace(marked().summary, modules=modules)
    opened(tmp_path).store_window([segment(replace(marked(), frames=tuple(frames), summary=summary), "web", END)])
    found = state(str(tmp_path), ALL)
    (service,) = found.services
    assert [(each.path, each.problems) for each in found.unnamed] == [("/usr/lib/libc.so.6", problems)]
    assert service.segments == 1
    assert service.whole is not None
    assert 0 < service.whole < 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"errors": [1], "stops": 7, "skipped": -1}',
        b'{"errors": {"a": "b"}}',
        b"{",
        b'{"lacks": [1, [], [1, 2, 3, 4]]}',
    ],
)
def test_what_a_recording_did_is_believed_only_where_it_can_be(text: bytes) -> None:
    try:
        found = pprof_tables.read_summary(text)
    except FormatError:
        assert text in (b"", b"{")
    else:
        assert (found.errors, found.skipped) == ({}, 0)
