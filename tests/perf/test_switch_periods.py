"""Tests of the sampling periods of context switches."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.collectors.perf.event_attributes import PERIODS, Periods, Tuning, choose_thread_periods

BUDGET = 2000.0


def test_rare_switches_are_all_sampled_next_to_frequent_ones() -> None:
    found = choose_thread_periods({1: 100_000, 2: 90_000, 3: 600, 4: 1.0}, [1, 2, 3, 4], BUDGET)
    assert (found.find_period(3), found.find_period(4), found.find_period(99)) == (1, 1, 1)
    assert found.find_period(1) >= 100_000 / (BUDGET / 2)
    assert found.find_period(2) >= 41


def test_threads_that_come_and_go_share_a_period_that_holds_for_all() -> None:
    found = choose_thread_periods(dict.fromkeys(range(1000), 10.0) | {5000: 3.0}, [5000], BUDGET)
    assert found.find_period(7) == found.find_period(5000) == 17


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(1, 40), st.floats(0, 1e6), max_size=20), st.sets(st.integers(1, 40)))
def test_samples_stay_within_the_budget(rates: dict[int, float], own: set[int]) -> None:
    found = choose_thread_periods(rates, own, BUDGET)
    assert all(found.find_period(tid) in PERIODS for tid in rates)

    if all(found.find_period(tid) < PERIODS[-1] for tid in rates):
        assert sum(hz / found.find_period(tid) for tid, hz in rates.items()) <= 1.01 * BUDGET


def test_periods_are_changed_only_where_it_is_worth_while() -> None:
    now = Periods(1, {1: 101})
    assert now.is_suitable({1: 100_000}, Periods(1, {1: 41}), BUDGET)
    assert not now.is_suitable({1: 100_000}, Periods(1, {1: 7}), BUDGET)
    assert not now.is_suitable({1: 100_000, 2: 3000}, Periods(1, {1: 251, 2: 3}), BUDGET)


def test_what_chance_does_to_a_thousand_threads_in_a_short_while_changes_nothing() -> None:
    draw = random.Random(1)
    tuning = Tuning(Periods(101))
    changes = []
    for turn in range(160):  # 8 seconds with 6670 switches each
        tuning.count_switches(Counter(draw.choices(range(1000), k=333)), 0.05)
        found = tuning.choose_periods(lambda tid: True, BUDGET)
        if found is not None:
            changes.append(turn)
            tuning.periods = found
    assert changes[0] == 0
    assert len(changes) <= 9
    assert tuning.periods.default == 1


def test_far_too_many_samples_change_the_periods_soon() -> None:
    tuning = Tuning(Periods(1))
    tuning.count_switches({1: 1}, 0.05)
    assert tuning.choose_periods(lambda tid: True, BUDGET) is None
    tuning.count_switches({1: 5000}, 0.05)
    assert tuning.choose_periods(lambda tid: True, BUDGET) is None
    tuning.count_switches({1: 5000}, 0.05)
    found = tuning.choose_periods(lambda tid: True, BUDGET)
    assert found is not None
    assert found.find_period(1) >= 41
