"""By how much all functions changed together: another machine or load, not a change of some of them.

The processor is slower today, or shared with another one; more requests came; or one function grew, and all others have
a smaller share. Then most functions changed by the same factor, and those that changed beside it stand out.
"""

from __future__ import annotations

import numpy as np

from pyprof.comparison.slices import F64
from pyprof.records import dataclass

LARGEST = 0.2
"""Change that is the machine's; a larger one is the program's."""
_LEAST_SAMPLES = 50
_LEAST_FUNCTIONS = 5
_LARGEST_WEIGHT = 0.2
"""Of one function: what is most of a program must not speak for all."""
_ALIKE = 3.0
"""Standard errors from the middle."""


@dataclass(frozen=True, slots=True)
class Drift:
    """factor: after to before; 1 where functions do not say the same. error: its standard error, as a part. ratios,
    exact: what each function says, as a logarithm, and one over the variance; 0 of those that are not asked.
    """

    factor: float
    error: float
    ratios: F64
    exact: F64

    def beside(self) -> tuple[F64, F64]:
        """Factor and error for each function, by all others: what changed is no part of what it changed beside."""
        rest = self.exact.sum() - self.exact
        known = (self.exact > 0) & (rest > 0)
        rest = np.where(known, rest, 1.0)
        said = self.exact * self.ratios
        others = np.where(known, said.sum() - said, 0.0) / rest
        return np.where(known, np.exp(others), self.factor), np.where(known, 1 / np.sqrt(rest), self.error)


def no_drift(functions: int) -> Drift:
    return Drift(1.0, 0.0, np.zeros(functions), np.zeros(functions))


def load_factor(rates: tuple[F64, F64], samples: tuple[F64, F64]) -> float:
    """Return the factor, of any size, by which all functions changed alike; 1 where they did not.

    Of fewer than five functions all must agree: one of two that changed is no majority.

    Args:
        rates: cost of each function in itself, before and after.
        samples: the samples of each function, before and after.
    """
    found = drift_of(rates, samples, np.inf, 1)
    judged = (samples[0] + samples[1] >= _LEAST_SAMPLES) & ((rates[0] > 0) | (rates[1] > 0))
    if judged.sum() < _LEAST_FUNCTIONS and (found.exact > 0).sum() < judged.sum():
        return 1.0
    return found.factor


def drift_of(
    rates: tuple[F64, F64], samples: tuple[F64, F64], largest: float, functions: int = _LEAST_FUNCTIONS
) -> Drift:
    """Return the change that most functions have in common.

    Args:
        rates: cost of each function in itself, before and after.
        samples: the samples of each function, before and after.
        largest: see LARGEST.
        functions: how many must say something at least.
    """
    none = no_drift(len(rates[0]))
    often = (samples[0] + samples[1] >= _LEAST_SAMPLES) & (rates[0] > 0) & (rates[1] > 0)
    if often.sum() < functions or not largest:
        return none
    ratio = np.log(rates[1][often] / rates[0][often])
    variance = 1 / samples[0][often] + 1 / samples[1][often]
    exact = 1 / variance
    weight = np.minimum(exact, _LARGEST_WEIGHT * exact.sum())
    order = np.argsort(ratio, kind="stable")
    middle = ratio[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)]
    alike = np.abs(ratio - middle) <= _ALIKE * np.sqrt(variance)
    if weight[alike].sum() < weight.sum() / 2:
        return none
    kept = np.where(alike, exact, 0)
    factor = float(np.exp((kept * ratio).sum() / kept.sum()))
    if not 1 / (1 + largest) <= factor <= 1 + largest:
        return none
    ratios, weights = none.ratios.copy(), none.exact.copy()
    ratios[often], weights[often] = ratio, kept
    return Drift(factor, float(1 / np.sqrt(kept.sum())), ratios, weights)
