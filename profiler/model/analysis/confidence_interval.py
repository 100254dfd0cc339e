"""The confidence interval of a function's share, by the number of samples behind it.

Samples may stand for different times: those of each process are scaled to the time that the process had. Kish's
effective sample size, (sum of weights)^2 / (sum of squared weights), is the number of equal samples with the same
information. Wilson's interval contains the true share with a probability of at least 95 %. Time without any sample may
belong to any function, so it widens the interval.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.model.profile import Profile

CONFIDENCE = 0.95
"""Probability with which an interval contains the true share."""
_Z = 2.24
"""Half width of an interval, in standard deviations.

1.96 is exact for a normal distribution, but counts of samples are whole numbers. With 1.96, 43 % of the shares between
2 and 98 % among 3 to 400 samples lie in their interval less often than CONFIDENCE. With 2.24 it is 4 %: rare functions
among few samples.
"""


class SamplingBasis(NamedTuple):
    """The number of samples from which the shares in a profile are computed. It determines the confidence interval of a
    share.

    Attributes:
        samples: Effective number of samples.
        sampled: Fraction (0..1) of the time that samples stand for.
    """

    samples: float
    sampled: float

    def interval(self, share: float) -> tuple[float, float]:
        """Return the bounds between which the true share of a function lies, for its measured share of all time.

        They contain it with a probability of at least CONFIDENCE.
        """
        if not self.samples:
            return 0.0, 1.0
        low, high = wilson(min(share / self.sampled, 1.0), self.samples)
        return low * self.sampled, high * self.sampled + 1 - self.sampled

    @property
    def half_width(self) -> float:
        """Half the width of the confidence interval for a share of one half, which is the widest."""
        low, high = self.interval(self.sampled / 2)
        return (high - low) / 2


def profile_basis(profile: Profile) -> SamplingBasis | None:
    """Return the number of samples behind a profile's shares, as a SamplingBasis, None if its values are measured and
    not sampled.
    """
    if profile.value_types[-1].type != "cpu" or not profile.total:
        return None
    return sampling_basis(profile.values[:, 0], profile.values[:, -1])


def sampling_basis(counts: npt.NDArray[np.int64], amounts: npt.NDArray[np.int64]) -> SamplingBasis:
    """Return the number of samples behind shares of the amounts, as a SamplingBasis.

    Args:
        counts: (n,) Number of samples of each row, 0 for time without samples.
        amounts: (n,) Amount that each row stands for, such as nanoseconds.
    """
    squares = float(squared_weights(counts, amounts).sum())
    return basis_of_sums(float(amounts[counts > 0].sum()), float(amounts.sum()), squares)


def squared_weights(counts: npt.NDArray[np.int64], amounts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return for each row the sum, over its samples, of the square of the amount that one sample stands for.

    Such sums can be added. Merged rows no longer tell how much each of their samples stood for, but their sums do.

    Args:
        counts: (n,) Number of samples of each row, 0 for time without samples.
        amounts: (n,) Amount that each row stands for; its samples share it equally.
    """
    found: npt.NDArray[np.float64] = np.where(counts > 0, amounts.astype(np.float64) ** 2 / np.maximum(counts, 1), 0.0)
    return found


def basis_of_sums(sampled: float, total: float, squares: float) -> SamplingBasis:
    """Return the number of samples behind shares, as a SamplingBasis, from sums over all rows.

    Args:
        sampled: Sum of the amounts of rows with samples.
        total: Sum of the amounts of all rows.
        squares: Sum, over all samples, of the square of the amount that one sample stands for (see squared_weights()).
    """
    return SamplingBasis(sampled**2 / squares, sampled / total) if squares else SamplingBasis(0.0, 0.0)


def wilson(share: float, samples: float) -> tuple[float, float]:
    """Return the bounds (low, high) of Wilson's confidence interval for a proportion.

    Args:
        share: The measured proportion, 0 to 1.
        samples: Number of samples from which it was measured.
    """
    square = _Z * _Z / samples
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / samples + square / (4 * samples)) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)
