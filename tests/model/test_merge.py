"""Tests of merging profiles: equal entries become one, and no sample is lost."""

from __future__ import annotations

import numpy as np
import pytest

import pyprof
from pyprof.errors import UsageError
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.merge import merge, recent, recorded_until
from pyprof.model.loss_reason_texts import Note
from pyprof.model.profile import ThreadInfo, ValueType
from pyprof.model.summary import Stops
from tests.exporters.profiles import MODULES, PERIOD_NS, START_NS, Builder, code, golden
from tests.exporters.support import THREADS, export


def test_halves_of_a_profile_make_the_whole_one() -> None:
    whole = golden()
    middle = float(np.median(whole.time_ns - whole.start_ns)) / 1e9
    found = merge([whole.filter(end=middle), whole.filter(start=middle)])
    for name in ("collapsed", "chrome"):
        assert export(name, found, THREADS) == export(name, whole, THREADS)
    assert (found.start_ns, found.duration_ns) == (whole.start_ns, whole.duration_ns)
    assert found.summary.ends == whole.filter().summary.ends
    assert len(found.frames) == len(whole.filter().frames)
    assert found.threads == whole.threads


def test_times_of_profiles_that_overlap_are_kept_in_order() -> None:
    first = golden()
    later = replace(first, time_ns=first.time_ns + 7, start_ns=first.start_ns + 7)
    found = merge([later, first])
    np.testing.assert_array_equal(found.time_ns, np.sort([*first.time_ns, *later.time_ns]))
    assert found.total == 2 * first.total
    assert found.duration_ns == first.duration_ns + 7


def test_values_that_are_too_large_for_a_sum_are_refused() -> None:
    """Merge profiles whose values fit into 64 bits separately but not together."""
    whole = golden()
    values = whole.values.copy()
    values[0, -1] += (1 << 61) + (1 << 20) - whole.total
    half = replace(whole, values=values)
    assert merge([half, whole]).total == half.total + whole.total
    with pytest.raises(UsageError, match="does not fit into 64 bits"):
        merge([half, half])
    with pytest.raises(UsageError, match="does not fit into 64 bits"):
        merge([replace(whole, values=-values), half])


def test_modules_and_frames_that_differ_stay_apart_and_get_new_numbers() -> None:
    one, other = Builder(), Builder([ThreadInfo(7, 7, "main", "tool")])
    one.sample(one.node([code("main", 1), code("f", 1, 0x200)]))
    other.sample(other.node([code("main", 1), code("g", 2, 0x300)]))
    found = merge([one.build(), other.build(modules=MODULES[::-1])])
    assert [frame.title for frame in found.frames] == ["main", "f", "g"]
    places = [found.modules[frame.module].path for frame in found.frames]
    assert places == [MODULES[1].path, MODULES[1].path, MODULES[0].path]
    assert len(found.modules) == 3
    assert [thread.pid for thread in found.threads] == [7, 100]
    assert [found.threads[at].pid for at in found.thread] == [100, 7]


def test_thread_that_got_another_name_is_one_and_threads_of_unknown_start_are_not() -> None:
    names = [replace(ThreadInfo(1, 2, "a", "p"), started=5, process_started=3)]
    names += [replace(names[0], name="b"), ThreadInfo(1, 2, "a", "p"), ThreadInfo(1, 2, "b", "p")]
    profiles = []
    for info in names:
        builder = Builder([info])
        builder.sample(builder.node([code("f")]))
        profiles.append(builder.build())
    assert [thread.name for thread in merge(profiles[:2]).threads] == ["b"]
    assert [thread.name for thread in merge(profiles[2:]).threads] == ["a", "b"]


def test_columns_that_one_profile_lacks_are_unknown_there() -> None:
    known = replace(golden(), cpu=np.ones(len(golden().stack), np.int32))
    cpu = merge([golden(), known]).cpu
    assert cpu is not None
    assert sorted(cpu.tolist()) == [-1] * len(golden().stack) + [1] * len(golden().stack)
    assert merge([golden(), golden()]).cpu is None


def test_numbers_of_summaries_add_up_and_options_that_differ_are_left_out() -> None:
    options = {"rate": "99", "mode": "cpu"}
    summary = replace(
        golden().summary, skipped=2, stops=Stops(3, 10.0, 20.0, 30.0, 0.5), errors={"a": 1}, notes=(Note("n"),)
    )
    one = replace(golden(), summary=summary, options=options)
    found = merge([one, replace(one, options={**options, "mode": "wall"}, title="other")])
    assert (found.summary.skipped, found.summary.errors, found.summary.notes) == (4, {"a": 2}, summary.notes)
    assert found.summary.stops == Stops(6, 10.0, 20.0, 30.0, 0.5)
    assert found.summary.samples == 2 * len(golden().stack)
    assert found.options == {"rate": "99"}
    assert found.title == f"{golden().title} + other"
    problems = {module.path: module.problems for module in golden().summary.modules if module.problems}
    assert {module.path: module.problems for module in found.summary.modules if module.problems} == problems


def test_profiles_without_samples_and_other_values() -> None:
    empty = golden().filter(pid=999)
    assert export("collapsed", merge([empty, golden()])) == export("collapsed", golden())
    assert len(merge([empty]).stack) == 0
    other = replace(golden(), value_types=(ValueType("samples", "count"), ValueType("wall", "nanoseconds")))
    with pytest.raises(UsageError, match="cpu in one, samples, wall in another"):
        pyprof.merge([golden(), other])
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([])


def test_recent_part_begins_later_and_ends_as_before() -> None:
    whole = golden()
    whole = replace(whole, duration_ns=int(np.ptp(whole.time_ns)) + PERIOD_NS)
    found = recent(whole, 5 * PERIOD_NS / 1e9)
    assert found.start_ns + found.duration_ns == whole.start_ns + whole.duration_ns
    assert found.duration_ns == 5 * PERIOD_NS
    assert (found.time_ns >= found.start_ns).all()
    assert len(found.stack) == int((whole.time_ns >= found.start_ns).sum()) < len(whole.stack)
    assert recent(whole, 3600) is whole
    assert whole.start_ns == START_NS


def test_time_between_recordings_is_a_gap_and_counts_for_nothing() -> None:
    """Merge recordings with a gap, and parts of one recording, between which a rounding error is no gap."""
    begin, second = START_NS, 1_000_000_000
    one, two, three = (
        replace(golden(), start_ns=begin + at, time_ns=golden().time_ns + at, duration_ns=2 * second)
        for at in (0, 2 * second + 3, 3600 * second)
    )
    assert merge([one, two]).gaps == ()
    found = merge([three, merge([one, two])])
    assert found.gaps == ((begin + 4 * second + 3, begin + 3600 * second),)
    assert (found.recorded_ns, found.duration_ns) == (6 * second + 3, 3602 * second)
    assert merge([found, replace(one, start_ns=begin + 5 * second)]).gaps == (
        (begin + 4 * second + 3, begin + 5 * second),
        (begin + 7 * second, begin + 3600 * second),
    )
    late = found.cut(10, 3601)
    assert (late.gaps, late.recorded_ns) == (((begin + 10 * second, begin + 3600 * second),), second)
    assert recent(found, 3000).recorded_ns == 2 * second
    until = recorded_until(found)
    assert until.max() == (three.time_ns - three.start_ns).max() + 4 * second + 3


def test_recording_without_a_time_of_day_begins_with_the_others() -> None:
    unknown = replace(golden(), start_ns=0, time_ns=golden().time_ns - START_NS)
    found = merge([unknown, golden()])
    assert (found.start_ns, found.duration_ns, found.gaps) == (START_NS, golden().duration_ns, ())
    assert merge([unknown, unknown]).start_ns == 0
