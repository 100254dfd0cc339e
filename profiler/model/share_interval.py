"""The interval in which the true share of a function lies, by the number of samples behind it.

Samples may stand for different times: those of each process are scaled to the time that the process had. Kish's
effective number of samples, (sum of weights)^2 / (sum of squared weights), is the number of equal samples that would
say as much. Wilson's interval then holds the true share with a probability of 95 %. Time without any sample may belong
to any function: it widens the interval.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.model.profile import Profile

_Z = 1.96
"""Standard deviations of a normal distribution that hold 95 % of it."""


class SamplingBasis(NamedTuple):
    """The number and weight of the samples behind the shares of a profile.

    samples: the effective number of samples. sampled: the part (0..1) of the time that samples stand for.
    """

    samples: float
    sampled: float

    def interval(self, share: float) -> tuple[float, float]:
        """Return the bounds of the true share of something that has this share of all time, with 95 % probability."""
        if not self.samples:
            return 0.0, 1.0
        low, high = wilson(min(share / self.sampled, 1.0), self.samples)
        return low * self.sampled, high * self.sampled + 1 - self.sampled

    @property
    def half_width(self) -> float:
        """Return half the width of the interval of a share of one half, the widest that there is."""
        low, high = self.interval(self.sampled / 2)
        return (high - low) / 2


def profile_basis(profile: Profile) -> SamplingBasis | None:
    """Return what the shares of a profile rest on, None where its values are measured and not sampled."""
    if profile.value_types[-1].type != "cpu" or not profile.total:
        return None
    return sampling_basis(profile.values[:, 0], profile.values[:, -1])


def sampling_basis(counts: npt.NDArray[np.int64], amounts: npt.NDArray[np.int64]) -> SamplingBasis:
    """Return what shares of the amounts rest on.

    Args:
        counts: samples of each row, 0 for time that no sample stands for; (n,).
        amounts: what each row stands for, such as nanoseconds; (n,).
    """
    is_sampled = (counts > 0) & (amounts > 0)
    count, amount = counts[is_sampled].astype(np.float64), amounts[is_sampled].astype(np.float64)
    total, squares = float(amounts.sum()), float((amount * amount / count).sum())
    if not squares:
        return SamplingBasis(0.0, 0.0)
    return SamplingBasis(float(amount.sum()) ** 2 / squares, float(amount.sum()) / total)


def wilson(share: float, samples: float) -> tuple[float, float]:
    """Return Wilson's interval of a proportion that was found among so many samples."""
    square = _Z * _Z / samples
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / samples + square / (4 * samples)) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)
