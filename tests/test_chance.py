"""Tests of the bounds for random counts."""

from __future__ import annotations

import math

import pytest

from tests.chance import ODDS, most, poisson_bounds, share_margin


@pytest.mark.parametrize(("share", "of"), [(0.005, 200), (0.015, 400), (0.2, 50), (0.5, 1000)])
def test_more_is_less_likely_than_the_odds_and_one_less_is_not(share: float, of: int) -> None:
    def beyond(bound: int) -> float:
        return sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(bound + 1, of + 1))

    assert beyond(most(share, of)) < ODDS <= beyond(most(share, of) - 1)


def test_share_of_many_samples_is_hardly_more_than_the_chance() -> None:
    assert most(0.01, 100_000) < 0.012 * 100_000
    assert most(0.01, 0) == 0


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_share_outside_its_margin_is_about_as_likely_as_the_odds(share: float) -> None:
    of, margin = 1000, share_margin(share, 1000)
    beyond = [n for n in range(of + 1) if abs(n / of - share) > margin]
    chance = sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in beyond)
    assert ODDS / 2 < chance < 2 * ODDS


@pytest.mark.parametrize("mean", [0.3, 5, 40, 600])
def test_poisson_counts_outside_their_bounds_are_less_likely_than_the_odds(mean: float) -> None:
    def below(bound: int) -> float:
        return sum(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(bound))

    low, high = poisson_bounds(mean)
    assert below(low) < ODDS <= below(low + 1)
    assert 1 - below(high + 1) < ODDS <= 1 - below(high)


def test_nothing_is_expected_of_no_time() -> None:
    assert poisson_bounds(0) == (0, 0)
