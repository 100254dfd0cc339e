"""Tests of the histogram of pauses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.base import BUCKETS, PauseLog, bucket_of, middle_of


@given(st.integers(0, 1 << 44))
def test_a_bucket_stands_for_its_lengths_to_two_percent(ns: int) -> None:
    assert middle_of(bucket_of(ns)) == pytest.approx(ns, rel=0.016, abs=0.5)


def test_absurd_lengths_count_in_the_last_bucket() -> None:
    assert bucket_of(1 << 60) == BUCKETS - 1


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.sampled_from([50.0, 99.0, 100.0]))
def test_percentiles_agree_with_those_of_the_list(lengths: list[int], percent: float) -> None:
    log = PauseLog()
    for ns in lengths:
        log.add_pause(ns)
    exact = np.percentile(lengths, percent, method="inverted_cdf")
    assert log.snapshot().percentile_ns(percent) == pytest.approx(float(exact), rel=0.016, abs=0.5)


def test_difference_of_two_snapshots_is_what_came_between() -> None:
    log = PauseLog()
    log.add_pause(1000)
    before = log.snapshot()
    log.add_pause(5000)
    between = log.snapshot() - before
    assert (len(between), between.total_ns) == (1, 5000)
    assert between.percentile_ns(50) == pytest.approx(5000, rel=0.016)
    assert (log.snapshot() - log.snapshot()).percentile_ns(99) == 0.0
