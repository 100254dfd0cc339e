"""Bounds for random counts, which a correct recording exceeds once in a hundred thousand runs."""

from __future__ import annotations

import math
from statistics import NormalDist

ODDS = 1e-5


def most(share: float, of: int) -> int:
    """Return the largest plausible number of samples of a kind.

    Args:
        share: Probability that a sample is of this kind.
        of: Number of samples.
    """
    more = 1.0
    for count in range(of + 1):
        more -= _exactly(count, share, of)
        if more < ODDS:
            return count
    return of


def share_margin(share: float, of: int) -> float:
    """Return the largest plausible difference between a probability and the share of samples with this probability.

    Args:
        share: Probability that a sample is of a kind.
        of: Number of samples, not few.
    """
    return NormalDist().inv_cdf(1 - ODDS / 2) * math.sqrt(share * (1 - share) / of)


def poisson_bounds(mean: float) -> tuple[int, int]:
    """Return the smallest and the largest plausible count of independent events.

    Args:
        mean: Their expected count.

    Returns:
        (low, high). The count is below `low` with a probability below ODDS, and above `high` likewise.
    """
    below, count, low = 0.0, 0, 0
    while True:
        below += math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean else 1.0
        if below < ODDS:
            low = count + 1
        if 1 - below < ODDS:
            return low, count
        count += 1


def _exactly(count: int, share: float, of: int) -> float:
    """Return the probability of exactly this count in the binomial distribution."""
    ways = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    return math.exp(ways + count * math.log(share) + (of - count) * math.log1p(-share))
