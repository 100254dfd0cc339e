"""Tests of the running time whose samples were lost, from made switch records."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.collectors.context_switch_protocol import BLOCKED, ENDED, IN, PREEMPTED, Gap, ThreadEvents
from pyprof.collectors.offcpu.interval_attribution import DrainState, OffCpuIntervals
from pyprof.collectors.offcpu.lost_running_time import LostRunningTime

MS = 1_000_000
PERIOD = 10 * MS
Moment = tuple[int, int, int]
"""(tid, time in milliseconds, kind) of an event."""


def points(moments: list[Moment]) -> ThreadEvents:
    columns = np.array(moments, np.int64).reshape(-1, 3)
    return ThreadEvents.make_points(columns[:, 0], columns[:, 1] * MS, columns[:, 2])


def scaled(gaps: list[Gap]) -> list[Gap]:
    return [(low * MS, high * MS) for low, high in gaps]


@pytest.mark.parametrize(
    ("switches", "sampled_ms", "lost", "found"),
    [
        ([(7, 10, BLOCKED), (7, 50, IN)], [], [(0, 100)], {7: 60}),
        ([(7, 10, BLOCKED), (7, 50, IN)], [], [(20, 70)], {7: 20}),
        ([(7, 10, BLOCKED), (7, 50, IN)], [], [], {}),
        ([(7, 10, BLOCKED), (7, 50, IN)], [60], [(0, 100)], {7: 50}),  # the other processor's ring had room
        ([(7, 10, BLOCKED), (7, 50, IN)], [60], [(0, 30), (20, 55)], {7: 15}),
        ([(7, 20, IN), (7, 30, PREEMPTED), (8, 40, IN), (8, 70, ENDED)], [], [(0, 2**40)], {7: 10, 8: 30}),
        ([], [5], [(10, 90)], {7: 80}),  # it runs all the time
        ([], [], [(10, 90)], {}),  # it may sleep
    ],
)
def test_time_on_a_processor_while_samples_were_lost_is_lost(
    switches: list[Moment], sampled_ms: list[int], lost: list[Gap], found: dict[int, int]
) -> None:
    times = LostRunningTime(PERIOD)
    samples = points([(7, ms, 0) for ms in sampled_ms])
    result = times.find_lost_time(points(switches), samples, scaled(lost), [], (), 100 * MS)
    assert {tid: ns // MS for tid, ns in result} == found


def test_threads_go_on_running_in_the_next_reading_and_paused_ones_are_left_out() -> None:
    times, nothing = LostRunningTime(PERIOD), points([])
    assert not times.find_lost_time(points([(7, 50, IN), (8, 50, IN), (9, 50, ENDED)]), nothing, [], [], (), 100 * MS)
    samples = points([(8, 120, 0)])
    assert times.find_lost_time(nothing, samples, [(0, 2**62)], [], {8}, 200 * MS) == [(7, 100 * MS)]


def test_samples_of_one_reading_are_owed_to_the_lost_time_of_the_next() -> None:
    times, nothing = LostRunningTime(PERIOD), points([])
    samples = points([(7, ms, 0) for ms in range(1, 100, 8)])  # 13 periods, by chance
    assert not times.find_lost_time(points([(7, 0, IN)]), samples, [(0, 100 * MS)], [], (), 100 * MS)
    assert times.find_lost_time(nothing, nothing, [(0, 2**62)], [], (), 200 * MS) == [(7, 70 * MS)]


@pytest.mark.parametrize("gap", [(), ((400, 600),), ((350, 650),)])
def test_waits_and_lost_time_are_the_whole_time_of_a_thread(gap: tuple[Gap, ...]) -> None:
    """A thread runs for 3 of 10 ms. All samples are lost for 200 ms, and its switch records for a part of the time."""
    moments = [each for ms in range(0, 1000, 10) for each in ((7, ms, IN), (7, ms + 3, BLOCKED))]
    gaps, lost = scaled(list(gap)), [(400 * MS, 600 * MS)]
    records = [each for each in moments if not any(low < each[1] * MS < high for low, high in gaps)]
    samples = [(7, ms + 1, 0) for ms in range(0, 1000, 10) if ms % 100 in (0, 30, 60) and not 400 <= ms < 600]
    times, waits = LostRunningTime(PERIOD), OffCpuIntervals(True, 0, 25 * MS)
    found = times.find_lost_time(points(records), points(samples), lost, gaps, (), 1000 * MS)
    drain = DrainState(gaps=gaps, ends_window=True)
    off = waits.attribute(points(records), points([]), points([]), 1000 * MS, drain)
    off_ns = sum(ns for _, _, ns in off.bare)
    assert dict(found)[7] == pytest.approx(60 * MS, rel=0.1)
    assert off_ns + dict(found)[7] + len(samples) * PERIOD == pytest.approx(1000 * MS, rel=0.03)
