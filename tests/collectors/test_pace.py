"""The sampling clock, with a clock and dice of the tests' own."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.pace import Pace

MS = 1_000_000


def test_one_time_in_each_slot_near_its_middle() -> None:
    pace = Pace(100, None, 0, random.Random(1).random)
    now, times = 0, []
    for _ in range(1000):
        now = pace.next_due(now)
        times.append(now)
    assert [time // (10 * MS) for time in times] == list(range(1000))
    assert all(2 * MS <= time % (10 * MS) <= 8 * MS for time in times)
    assert len({b - a for a, b in itertools.pairwise(times)}) > 900
    assert (pace.skipped, pace.weight) == (0, 1)


def test_slots_that_went_by_are_skipped_and_counted_and_not_made_up_for() -> None:
    pace = Pace(100, None, 0, lambda: 0.5)
    assert pace.next_due(0) == 5 * MS
    assert pace.next_due(57 * MS) == 55 * MS
    assert (pace.skipped, pace.weight) == (4, 1)
    assert pace.next_due(58 * MS) == 65 * MS
    assert (pace.skipped, pace.weight) == (4, 1)


def test_a_low_limit_thins_the_slots_and_relief_brings_them_back() -> None:
    pace = Pace(100, 0.01, 0, lambda: 0.5)
    pace.stopped(50 * MS)
    assert not pace.adjust(100 * MS)
    assert pace.adjust(1000 * MS)
    assert pace.stride == 5
    assert pace.lowest_hz == 20
    before = pace.next_due(1000 * MS)
    assert pace.next_due(1000 * MS) - before == 50 * MS
    assert pace.weight == 5
    for second in range(2, 9):
        assert not pace.adjust(second * 1000 * MS)
    assert pace.stride == 1
    assert pace.lowest_hz == 20


def test_no_limit_never_changes_the_rate() -> None:
    pace = Pace(100, None, 0, lambda: 0.5)
    pace.stopped(10**12)
    assert not pace.adjust(10**12)
    assert pace.stride == 1


def test_a_limit_of_nothing_leaves_one_sample_a_second() -> None:
    pace = Pace(100, 0.0, 0, lambda: 0.5)
    pace.adjust(1000 * MS)
    assert pace.stride == 100


@given(st.lists(st.integers(0, 10**9), max_size=50), st.floats(1, 20000))
def test_samples_and_skips_account_for_every_slot(delays: list[int], rate: float) -> None:
    pace = Pace(rate, None, 0, random.Random(2).random)
    now = pace.next_due(0)
    for delay in delays:
        due = pace.next_due(now)
        assert due > now - pace.period_ns
        now = max(now, due) + delay
    slots = due // pace.period_ns if delays else 0
    assert slots == pace.skipped + len(delays)
    assert pace.weight == 1
