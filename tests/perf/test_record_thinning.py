"""Tests of thinning the many records that short threads need to the number of requested samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.perf.random_sampling import Starvation, Thinning
from pyprof.collectors.perf.ring_buffer_records import TIME

pytestmark = [pytest.mark.live, pytest.mark.system]

SINCE = 1000


@given(st.lists(st.integers(0, 120), max_size=12), st.floats(3, 9))
def test_one_record_of_each_group_is_kept_and_all_that_are_older(looks: list[int], factor: float) -> None:
    thinning = Thinning()
    thinning.multiply(1.0, factor, SINCE)
    assert thinning.factor == factor
    kept, place = [], 0
    for n in looks:
        first = 8 * np.arange(place, place + n)
        words = np.zeros(8 * (place + n) + 8, np.uint64)
        words[first + TIME] = SINCE - 1 + (first >= 8 * 20)  # the first twenty records are older
        pieces = thinning.thin_records(words, [first[: n // 2], first[n // 2 :]])
        kept += [at // 8 for piece in pieces for at in piece.tolist()]
        place += n
    old, dense = min(place, 20), max(place - 20, 0)
    assert kept[:old] == list(range(old))
    assert kept == sorted(set(kept))
    assert dense // math.ceil(factor) <= len(kept) - old <= math.ceil(dense / int(factor))


def test_records_from_before_another_factor_are_thinned_too() -> None:
    thinning = Thinning()
    thinning.multiply(1.0, 10, SINCE)
    thinning.multiply(1.0, 20, SINCE + 500)
    words = np.zeros(8 * 400, np.uint64)
    first = 8 * np.arange(400)
    words[first + TIME] = SINCE + 100
    assert sum(map(len, thinning.thin_records(words, [first]))) == 20


def test_records_come_no_more_often_than_rings_can_hold() -> None:
    thinning = Thinning()
    thinning.multiply(99, 1e9, 0)
    assert thinning.factor == 8000 / 99
    thinning.multiply(99, 1000, 0)
    assert thinning.factor == 1000 / 99
    thinning.multiply(9999, 1e9, 0)
    assert thinning.factor == 1


def test_usual_records_exceed_samples_by_a_factor_that_differs_by_recording() -> None:
    factors = set()
    for _ in range(20):
        thinning = Thinning()
        thinning.start_thinning(1000, 0)
        factors.add(thinning.factor)
    assert len(factors) > 10
    assert 2.61 < min(factors) < max(factors) < 2.62


@pytest.mark.parametrize("period", [0.5, 1.0, 2.0, 3.0, 0.99, 100 / 99, (1 + 5**0.5) / 2])
def test_program_in_step_has_its_share_of_the_samples(period: float) -> None:
    """Thin records with a fixed period of a program that alternates with a simple multiple of the sampling period."""
    samples = 20_000
    thinning = Thinning()
    thinning.start_thinning(100, 0)
    count = int(samples * thinning.factor)
    first = 8 * np.arange(count)
    words = np.ones(8 * count + 8, np.uint64)
    kept = np.concatenate(
        [piece for at in range(0, count, 37) for piece in thinning.thin_records(words, [first[at : at + 37]])]
    )
    phase = kept / 8 / thinning.factor / period % 1
    assert abs(len(kept) - samples) < 6 * samples**0.5 / thinning.factor
    assert abs(np.count_nonzero(phase < 0.5) - samples / 2) < 5.5 * (samples / 4) ** 0.5


MS = 1_000_000


def test_many_births_and_much_time_without_samples_ask_for_more_records() -> None:
    starvation = Starvation(100)
    assert not starvation.is_starved(1000, 40 * MS, 0), "too little to judge by"
    soon = starvation.check_interval_ns
    assert not starvation.is_starved(0, 200 * MS, 180 * MS), "nearly all is sampled"
    assert starvation.check_interval_ns > soon
    assert not starvation.is_starved(3, 400 * MS, 200 * MS), "of each birth a period is missing at most"
    assert starvation.is_starved(1000, 600 * MS, 200 * MS)
    assert not starvation.is_starved(1000, 600 * MS, 200 * MS), "nothing has been spent since"
