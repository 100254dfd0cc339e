"""Tests of the Chrome trace: it is valid and complete, and the drawn stack at each sample is the sample's stack."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given

from pyprof.errors import OutputError
from pyprof.exporters.begin_end_times import IN_SEQUENCE
from pyprof.exporters.display_names import frame_levels
from pyprof.model.analysis.sample_filter import timed
from pyprof.model.profile import Frame, Profile, ThreadInfo, ValueType
from pyprof.model.untrusted_text import clean_text
from tests.exporters.profiles import PERIOD_NS, START_NS, Builder, code, deep, golden, profiles
from tests.exporters.support import PLAIN, export
from tests.exporters.trace_event import Thread, Trace, read

A, B, C = code("a", rel=0x10), code("b", rel=0x20), code("c", rel=0x30)


def names(profile: Profile, leaf: int) -> tuple[str, ...]:
    found = [level.name for frame in profile.path(leaf) for level in frame_levels(profile, frame, PLAIN)]
    return tuple(map(clean_text, found)) or ("[unknown]",)


def drawn(trace: Trace) -> list[tuple[int, int, tuple[str, ...]]]:
    """Return (begin, end, stack) of all slices, with times in sampling periods."""
    return [(s.begin // PERIOD_NS, s.end // PERIOD_NS, s.stack) for each in trace.slices.values() for s in each]


def at(*samples: tuple[int, list[Frame]], **more: Any) -> Trace:
    """Return the trace of a thread that has these stacks at these sampling periods."""
    builder = Builder()
    for _, stack in samples:
        builder.sample(builder.node(stack))
    time_ns = START_NS + np.array([period for period, _ in samples], np.int64) * PERIOD_NS
    return read(export("chrome", builder.build(time_ns=time_ns, **more)))


def test_processes_and_threads_are_named() -> None:
    trace = read(export("chrome", golden()))
    assert trace.processes == {100: "server", 200: "child"}
    assert trace.threads[100, 101] == "worker;1"
    assert trace.threads[200, 200] == "thread"
    assert set(trace.slices) == {(100, 100), (100, 101), (100, 102), (200, 200)}


def test_samples_have_their_stack_weight_and_processor() -> None:
    profile = golden()
    cpu = np.arange(len(profile.stack), dtype=np.int32) - 1
    trace = read(export("chrome", replace(profile, cpu=cpu)))
    expected = []
    for index in np.lexsort((profile.time_ns, profile.thread)).tolist():
        thread, weight = profile.threads[profile.thread[index]], int(profile.values[index, -1])
        where, time_ns = (thread.pid, thread.tid), int(profile.time_ns[index] - START_NS)
        if weight:
            processor = index - 1 if index else None
            expected.append((where, time_ns, names(profile, int(profile.stack[index])), weight, processor))
    assert trace.samples == expected


def test_function_goes_on_while_samples_have_it_at_the_same_place() -> None:
    assert drawn(at((0, [A, B]), (1, [A, B, C]), (2, [A, C]), (3, [B]))) == [
        (0, 3, ("a",)),
        (0, 2, ("a", "b")),
        (1, 2, ("a", "b", "c")),
        (2, 3, ("a", "c")),
        (3, 4, ("b",)),
    ]


def test_recursion_is_a_slice_in_a_slice() -> None:
    assert drawn(at((0, [A, A]), (1, [A]))) == [(0, 2, ("a",)), (0, 1, ("a", "a"))]


def test_late_sample_goes_on_and_a_gap_ends_all() -> None:
    assert drawn(at((0, [A]), (2, [A]), (5, [A]))) == [(0, 3, ("a",)), (5, 6, ("a",))]


def test_sample_that_stands_for_more_ends_at_the_next_one() -> None:
    values = np.array([[1, 5 * PERIOD_NS], [1, 2 * PERIOD_NS]], np.int64)
    assert drawn(at((0, [A]), (3, [B]), values=values)) == [(0, 3, ("a",)), (3, 5, ("b",))]


def test_addresses_of_one_function_are_one_slice() -> None:
    assert drawn(at((0, [code("a", rel=0x11)]), (1, [A]))) == [(0, 2, ("a",))]


def test_samples_without_times_follow_one_another_in_each_thread_and_it_is_said() -> None:
    builder = Builder([ThreadInfo(1, tid, "t", "p") for tid in (1, 2)])
    for thread, stack, periods in ((0, [A], 1), (1, [B], 4), (0, [A, C], 2), (1, [B, C], 1), (0, [A], 1)):
        builder.sample(builder.node(stack), thread, periods, periods * PERIOD_NS)
    data = export("chrome", builder.build(time_ns=np.full(5, START_NS)))
    assert sorted(drawn(read(data))) == [
        (0, 4, ("a",)),
        (0, 5, ("b",)),
        (1, 3, ("a", "c")),
        (4, 5, ("b", "c")),
    ]
    assert json.loads(data)["otherData"]["note"] == IN_SEQUENCE
    assert "note" not in json.loads(export("chrome", golden()))["otherData"]


def test_counts_are_drawn_in_periods() -> None:
    values, kind = np.array([[2], [1]], np.int64), (ValueType("samples", "count"),)
    assert drawn(at((0, [A]), (2, [B]), values=values, value_types=kind)) == [(0, 2, ("a",)), (2, 3, ("b",))]


def test_module_and_file_are_arguments() -> None:
    trace = at((0, [code("a", file="/src/a.c", line=3)]))
    assert trace.slices[100, 100][0].args == {"module": "server", "file": "/src/a.c"}


def test_threads_of_one_id_are_one_track_in_time_order() -> None:
    builder = Builder([ThreadInfo(1, 1, "old", "p"), ThreadInfo(1, 1, "new", "p")])
    builder.sample(builder.node([A]), 1)
    builder.sample(builder.node([B]), 0)
    later_first = START_NS + np.array([PERIOD_NS, 0], np.int64)
    assert drawn(read(export("chrome", builder.build(time_ns=later_first)))) == [(0, 1, ("b",)), (1, 2, ("a",))]


def test_times_are_whole_to_the_nanosecond_and_small() -> None:
    event = next(e for e in json.loads(export("chrome", golden()))["traceEvents"] if e["ph"] == "X")
    assert event["ts"] * 1000 < 10 * PERIOD_NS
    profile = Builder()
    profile.sample(profile.node([A]), cpu_ns=1234567)
    assert b'"ts":0,"dur":1234.567}' in export("chrome", profile.build())


def test_differences_are_refused() -> None:
    with pytest.raises(OutputError, match="negative"):
        export("chrome", replace(golden(), values=-golden().values))


def test_profile_without_samples_is_a_trace_without_slices() -> None:
    trace = read(export("chrome", Builder().build()))
    assert (trace.slices, trace.samples, trace.threads) == ({}, [], {(100, 100): "main"})


def test_deep_recursion_is_written() -> None:
    trace = read(export("chrome", deep(3000, 5)))
    assert max(len(stack) for _, _, stack, _, _ in trace.samples) == 3000


@given(profiles())
def test_what_is_drawn_at_a_sample_is_its_stack(profile: Profile) -> None:
    assume(timed(profile))
    trace = read(export("chrome", profile))
    kept = [index for index, value in enumerate(profile.values[:, -1].tolist()) if value > 0]
    assert sorted(weight for *_, weight, _ in trace.samples) == sorted(profile.values[kept, -1].tolist())
    ids = [(thread.pid, thread.tid) for thread in profile.threads]
    tracks = [(pid, tid + (ids[:at].count((pid, tid)) << 22)) for at, (pid, tid) in enumerate(ids)]
    last: dict[tuple[Thread, int], tuple[str, ...]] = {}
    for index in kept:
        time_ns = int(profile.time_ns[index]) - START_NS
        last[tracks[profile.thread[index]], time_ns] = names(profile, int(profile.stack[index]))
    for (where, time_ns), stack in last.items():
        assert trace.stack_at(where, time_ns) == stack
