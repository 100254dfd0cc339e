"""Bounds for what is left to chance: counts that a sound recording exceeds once in a hundred thousand runs."""

from __future__ import annotations

import math

ODDS = 1e-5


def most(share: float, of: int) -> int:
    """The largest plausible count of samples of a kind, among so many that are each of it with this chance."""
    more = 1.0
    for count in range(of + 1):
        more -= _exactly(count, share, of)
        if more < ODDS:
            return count
    return of


def _exactly(count: int, share: float, of: int) -> float:
    """The binomial distribution."""
    ways = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    return math.exp(ways + count * math.log(share) + (of - count) * math.log1p(-share))
