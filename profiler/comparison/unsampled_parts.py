"""The part of each compared profile that no sample stands for, and the ranges of costs that follow from it.

The agent's windows have the exact processor time of each process, but few samples if the budget is small. The functions
of a service get its unsampled time by their samples. Which functions had it is unknown, so their costs are ranges.
"""

from __future__ import annotations

import numpy as np

from pyprof.model.analysis.confidence_interval import SamplingBasis, profile_basis
from pyprof.model.analysis.sample_filter import selected
from pyprof.model.profile import Profile
from pyprof.records import dataclass, field, replace

MIN_EFFECTIVE_SAMPLES = 12
"""Minimum effective number of samples of a side. Fewer leave the share of a function within ±25 % of all or more."""
_WHOLE = 0.99
"""Share of the time with samples above which the rest cannot matter."""


@dataclass(frozen=True, slots=True)
class SampledSide:
    """One side of a comparison, in which the functions of each service share its unsampled time.

    Attributes:
        original: The profile as it is.
        profile: The profile in which functions share unsampled time. Its total is unchanged.
        total: Sum of the compared value over all samples.
        unsampled: The part of it that no function has, because its service has no sample at all.
        basis: The samples behind the shares, None if values are measured and not sampled.
    """

    original: Profile = field(repr=False)
    profile: Profile = field(repr=False)
    total: int
    unsampled: int = 0
    basis: SamplingBasis | None = None

    @property
    def has_few_samples(self) -> bool:
        return self.basis is not None and self.basis.samples < MIN_EFFECTIVE_SAMPLES

    @property
    def is_partial(self) -> bool:
        """True if a part of the time, which matters, has no samples."""
        return self.basis is not None and self.basis.sampled < _WHOLE

    def bounds(self, amount: float) -> tuple[float, float]:
        """Return the bounds of a function's true cost, for its cost by samples."""
        if self.basis is None or not self.total:
            return amount, amount
        low, high = self.basis.interval(min(amount / self.total, 1.0) * self.basis.sampled)
        return low * self.total, high * self.total


def sampled_side(profile: Profile, column: int) -> SampledSide:
    """Return a profile as a side of a comparison of one of its values."""
    amounts = profile.values[:, column]
    total = int(amounts.sum())
    is_primary = 0 < column == len(profile.value_types) - 1
    basis = profile_basis(profile) if is_primary else None
    has_samples = profile.values[:, 0] > 0
    if basis is None or has_samples[amounts > 0].all():
        return SampledSide(profile, profile, total, 0, basis)
    values, unsampled = profile.values.copy(), 0
    names = np.array([dict(thread.labels).get("service", "") for thread in profile.threads])[profile.thread]
    for name in np.unique(names):
        mine = names == name
        known, missing = mine & has_samples, mine & ~has_samples
        rest = int(amounts[missing].sum())
        upto = np.cumsum(amounts[known])
        if not len(upto) or not upto[-1]:
            unsampled += rest
            continue
        shares = np.rint(upto * ((upto[-1] + rest) / upto[-1])).astype(np.int64)
        values[known, column], values[missing, column] = np.diff(shares, prepend=0), 0
    spread = selected(replace(profile, values=values), values[:, column] != 0)
    return SampledSide(profile, spread, total, unsampled, basis)
