"""Tests that the confidence interval of a share contains the true share as often as it states."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.confidence_interval import (
    CONFIDENCE,
    basis_of_sums,
    profile_basis,
    sampling_basis,
    squared_weights,
    wilson,
)
from pyprof.model.profile import ValueType
from tests.exporters.profiles import golden

TRIALS = 4000
DOUBT = 4.5
"""Number of standard deviations that chance exceeds less than once in 100,000 runs."""


@pytest.mark.parametrize(("share", "samples"), [(0.5, 5), (0.25, 12), (0.05, 20), (0.35, 200), (0.03, 100)])
def test_wilson_interval_contains_the_true_share_at_least_as_often_as_it_states(share: float, samples: int) -> None:
    found = np.random.default_rng().binomial(samples, share, TRIALS)
    held = sum(low <= share <= high for low, high in (wilson(count / samples, samples) for count in found.tolist()))
    doubt = DOUBT * math.sqrt(TRIALS * CONFIDENCE * (1 - CONFIDENCE))
    assert held >= TRIALS * CONFIDENCE - doubt


def test_equal_samples_count_as_many_as_they_are() -> None:
    basis = sampling_basis(np.array([3, 7]), np.array([300, 700]))
    assert (round(basis.samples), basis.sampled) == (10, 1.0)


def test_sample_that_stands_for_most_of_the_time_counts_as_little_more_than_one() -> None:
    assert 1 < sampling_basis(np.array([1, 100]), np.array([10_000, 100])).samples < 1.1


def test_rows_that_are_added_up_keep_how_much_their_samples_stand_for() -> None:
    counts, amounts = np.array([4, 1, 10, 0]), np.array([80, 900, 100, 50])
    squares = squared_weights(counts, amounts)
    merged = basis_of_sums(float(amounts[:3].sum()), float(amounts.sum()), float(squares.sum()))
    assert merged == sampling_basis(counts, amounts)
    assert merged.samples < sampling_basis(np.array([15, 0]), np.array([1080, 50])).samples


def test_time_without_samples_widens_the_interval() -> None:
    basis = sampling_basis(np.array([100, 0]), np.array([600, 400]))
    low, high = basis.interval(0.3)
    assert low < 0.3 - 0.05
    assert high > 0.3 + 0.4
    assert sampling_basis(np.array([0]), np.array([5])).interval(0.0) == (0.0, 1.0)


def test_shares_of_waits_that_are_measured_have_no_interval() -> None:
    profile = golden()
    assert profile_basis(profile) is not None
    waits = replace(profile, value_types=(profile.value_types[0], ValueType("offcpu", "nanoseconds")))
    assert profile_basis(waits) is None
