"""Tests of thinning the many records that short threads need to the number of requested samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.perf.records import TIME
from pyprof.collectors.perf.short_threads import Starvation, Thinning

pytestmark = [pytest.mark.live, pytest.mark.system]

SINCE = 1000


@given(st.lists(st.integers(0, 120), max_size=12), st.integers(1, 4))
def test_one_record_of_each_run_is_kept_and_all_that_are_older(looks: list[int], factor: int) -> None:
    thinning = Thinning()
    thinning.begin(1.0, factor, SINCE)
    assert thinning.factor == factor
    records, kept, place = np.zeros(0, np.int64), [], 0
    for n in looks:
        first = 8 * np.arange(place, place + n)
        words = np.zeros(8 * (place + n) + 8, np.uint64)
        words[first + TIME] = SINCE - 1 + (first >= 8 * 20)  # the first twenty records are older
        pieces = thinning.kept(words, [first[: n // 2], first[n // 2 :]])
        kept += [at // 8 for piece in pieces for at in piece.tolist()]
        records, place = np.append(records, first), place + n
    old, dense = min(place, 20), max(place - 20, 0)
    assert kept[:old] == list(range(old))
    runs = [(at - 20) // factor for at in kept[old:]]
    assert runs == sorted(set(runs)), "never two of a run"
    assert set(range(dense // factor)) <= set(runs), "each whole run has one"


def test_records_from_before_another_factor_are_thinned_too() -> None:
    thinning = Thinning()
    thinning.begin(1.0, 10, SINCE)
    thinning.begin(1.0, 20, SINCE + 500)
    words = np.zeros(8 * 400, np.uint64)
    first = 8 * np.arange(400)
    words[first + TIME] = SINCE + 100
    assert sum(map(len, thinning.kept(words, [first]))) == 20


def test_records_come_no_more_often_than_rings_can_hold() -> None:
    thinning = Thinning()
    thinning.begin(99, 1e9, 0)
    assert thinning.factor == 80
    thinning.begin(99, 1000, 0)
    assert thinning.factor == 10
    thinning.begin(9999, 1e9, 0)
    assert thinning.factor == 1


MS = 1_000_000


def test_many_births_and_much_time_without_samples_ask_for_more_records() -> None:
    starvation = Starvation(100)
    assert not starvation.found(1000, 40 * MS, 0), "too little to judge by"
    soon = starvation.patience_ns
    assert not starvation.found(0, 200 * MS, 180 * MS), "nearly all is sampled"
    assert starvation.patience_ns > soon
    assert not starvation.found(3, 400 * MS, 200 * MS), "of each birth a period is missing at most"
    assert starvation.found(1000, 600 * MS, 200 * MS)
    assert not starvation.found(1000, 600 * MS, 200 * MS), "nothing has been spent since"
