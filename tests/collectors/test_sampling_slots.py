"""Tests of the sampling clock with a simulated clock and random numbers."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collector_control import Stride
from pyprof.collectors.sampling_clock import SamplingClock
from tests.lockstep.gaps import ks_probability

MS = 1_000_000


def test_one_time_in_each_slot_uniformly_over_all_of_it() -> None:
    pace = SamplingClock(100, None, 0, random.Random(1).random)
    now, times = 0, []
    for _ in range(1000):
        times.append(pace.next_due(now))
        now = (len(times)) * 10 * MS
    assert [time // (10 * MS) for time in times] == list(range(1000))
    places = Counter(time % (10 * MS) // MS for time in times)
    assert all(50 < places[tenth] < 150 for tenth in range(10))
    assert (pace.skipped, pace.weight) == (0, 1)


@pytest.mark.parametrize("cost", [0.05, 0.3, 0.9, 1.7])
@pytest.mark.parametrize("period", [0.5, 1.0, 1.01])
def test_phases_of_a_program_in_step_are_alike_whatever_a_round_costs(cost: float, period: float) -> None:
    """Check that slots during a long round shift the grid.

    Otherwise the start of the next slot would have fewer samples.
    """
    pace, now, phases = SamplingClock(100, None, 0, random.Random(3).random), 0, []
    for _ in range(20_000):
        due = pace.next_due(now)
        assert due >= now
        phases.append(due / (period * 10 * MS) % 1)
        now = due + round(cost * 10 * MS)
    assert ks_probability(np.array(phases), np.linspace(0, 1, 100_000)) > 1e-7


def test_slots_that_went_by_are_skipped_and_counted_and_not_made_up_for() -> None:
    pace = SamplingClock(100, None, 0, lambda: 0.5)
    assert pace.next_due(0) == 5 * MS
    assert pace.next_due(57 * MS) == 62 * MS
    assert (pace.skipped, pace.weight) == (4, 1)
    assert pace.next_due(66 * MS) == 72 * MS
    assert (pace.skipped, pace.weight) == (4, 1)
    assert pace.next_due(80 * MS) == 85 * MS
    assert (pace.skipped, pace.weight) == (5, 1), "parts of slots add up"


def test_slots_that_went_by_at_the_end_are_skipped_too() -> None:
    """Count slots that pass after the last sampling time, while the collector waits for something else until it
    ends.
    """
    pace = SamplingClock(100, None, 0, lambda: 0.5)
    assert pace.next_due(0) == 5 * MS
    pace.count_skipped(8 * MS)
    assert pace.skipped == 0
    pace.count_skipped(57 * MS)
    assert pace.skipped == 4
    limited = SamplingClock(100, 0.01, 0, lambda: 0.5)
    limited.next_due(0)
    limited.note_pause(1 * MS)
    limited.count_skipped(57 * MS)
    assert limited.skipped == 0, "left out for the limit's sake"


@pytest.mark.parametrize("limit", [0.001, 0.01, 0.2])
@pytest.mark.parametrize("pause_us", [20, 400, 3000])
def test_time_stopped_stays_within_the_limit_from_the_first_second_on(limit: float, pause_us: int) -> None:
    pace, now, stopped = SamplingClock(500, limit, 0, random.Random(1).random), 0, 0
    weights = 0
    while now < 60_000 * MS:
        now = pace.next_due(now)
        weights += pace.weight
        now += pause_us * 1000
        stopped += pause_us * 1000
        pace.note_pause(pause_us * 1000)
        assert stopped <= limit * now + 2 * pause_us * 1000
    assert weights + pace.skipped == pytest.approx(now / pace.period_ns, abs=2)
    assert pace.rate_hz <= 500
    if limit * 1e6 > 2 * pause_us * 500:
        assert pace.left_out < 200, "a limit that does not bite costs next to no samples"


def test_no_limit_never_leaves_a_slot_out() -> None:
    pace = SamplingClock(100, None, 0, lambda: 0.5)
    pace.note_pause(10**12)
    for n in range(5):
        pace.next_due(n * 10 * MS)
    assert (pace.left_out, pace.weight, pace.rate_hz) == (0, 1, 100)


@given(st.lists(st.integers(0, 10**9), max_size=50), st.floats(1, 20000))
def test_samples_and_skips_account_for_every_slot(delays: list[int], rate: float) -> None:
    pace = SamplingClock(rate, None, 0, random.Random(2).random)
    now = pace.next_due(0)
    for delay in delays:
        due = pace.next_due(now)
        assert due > now - pace.period_ns
        now = max(now, due) + delay
    slots = due // pace.period_ns if delays else 0
    assert pace.skipped + len(delays) <= slots <= pace.skipped + len(delays) + 1
    assert pace.weight == 1


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 50)), max_size=8))
def test_weights_sum_to_the_slots_whatever_strides_there_were(turns: list[tuple[int, int]]) -> None:
    """Check that each sample's weight covers the slots before it that a stride skips.

    Args:
        turns: (stride, number of samples), one after the other.
    """
    stride = Stride()
    pace, now, weights = SamplingClock(100, None, 0, lambda: 0.5, stride), 0, 0
    for stride.every, samples in turns:
        for _ in range(samples):
            now = pace.next_due(now)
            weights += pace.weight
            assert pace.weight == stride.every
    assert now == max(weights - 0.5, 0) * 10 * MS
    assert (pace.skipped, pace.left_out, pace.notes) == (0, 0, ())
    pace.count_skipped(now + (stride.every - 1) * 10 * MS)
    assert pace.skipped == 0, "left out for the stride's sake"
