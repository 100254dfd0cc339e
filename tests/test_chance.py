"""Tests of the bounds for random counts."""

from __future__ import annotations

import math

import pytest

from tests.chance import ODDS, most


@pytest.mark.parametrize(("share", "of"), [(0.005, 200), (0.015, 400), (0.2, 50), (0.5, 1000)])
def test_more_is_less_likely_than_the_odds_and_one_less_is_not(share: float, of: int) -> None:
    def beyond(bound: int) -> float:
        return sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(bound + 1, of + 1))

    assert beyond(most(share, of)) < ODDS <= beyond(most(share, of) - 1)


def test_share_of_many_samples_is_hardly_more_than_the_chance() -> None:
    assert most(0.01, 100_000) < 0.012 * 100_000
    assert most(0.01, 0) == 0
