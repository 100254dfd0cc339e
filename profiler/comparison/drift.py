"""The factor by which all functions changed together (the drift), as by another machine or load.

The processor may be slower today or shared with another program, or more requests came. Or one function grew, and all
others have a smaller share. Most functions then changed by the same factor, and the functions that changed otherwise
stand out.
"""

from __future__ import annotations

import numpy as np

from pyprof.comparison.time_slices import F64
from pyprof.records import dataclass

LARGEST = 0.2
"""Maximum factor by which all functions changed together (drift) that is attributed to the machine. A larger one is a
change of the program.
"""
_MIN_SAMPLES = 50
_MIN_FUNCTIONS = 5
_MAX_WEIGHT = 0.2
"""Maximum weight of one function in the drift. A function that is most of a program must not decide alone."""
_ALIKE = 3.0
"""Maximum distance from the median change for functions that agree on the drift, in standard errors."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The factor by which all functions of two profiles changed together.

    Attributes:
        factor: Costs after, divided by costs before; 1 if functions do not agree.
        error: Relative standard error of the factor.
        ratios: (functions,) Logarithm of each function's change.
        exact: (functions,) Inverse variance of each ratio, 0 for functions that are left out.
    """

    factor: float
    error: float
    ratios: F64
    exact: F64

    def beside(self) -> tuple[F64, F64]:
        """Return for each function the drift's factor and error, computed from all other functions.

        The change of a function must not be a part of what it is compared with.
        """
        rest = self.exact.sum() - self.exact
        known = (self.exact > 0) & (rest > 0)
        rest = np.where(known, rest, 1.0)
        said = self.exact * self.ratios
        others = np.where(known, said.sum() - said, 0.0) / rest
        return np.where(known, np.exp(others), self.factor), np.where(known, 1 / np.sqrt(rest), self.error)


def no_drift(functions: int) -> Drift:
    return Drift(1.0, 0.0, np.zeros(functions), np.zeros(functions))


def load_factor(rates: tuple[F64, F64], samples: tuple[F64, F64]) -> float:
    """Return the factor by which all functions changed together, without a limit; 1 if they do not agree.

    With fewer than five functions all must agree, because one of two functions is no majority.

    Args:
        rates: Own cost of each function, before and after.
        samples: Number of samples of each function, before and after.
    """
    found = drift_of(rates, samples, np.inf, 1)
    judged = (samples[0] + samples[1] >= _MIN_SAMPLES) & ((rates[0] > 0) | (rates[1] > 0))
    if judged.sum() < _MIN_FUNCTIONS and (found.exact > 0).sum() < judged.sum():
        return 1.0
    return found.factor


def drift_of(
    rates: tuple[F64, F64], samples: tuple[F64, F64], largest: float, functions: int = _MIN_FUNCTIONS
) -> Drift:
    """Return the change (drift) that most functions of two profiles have in common.

    Args:
        rates: Own cost of each function, before and after.
        samples: Number of samples of each function, before and after.
        largest: See LARGEST.
        functions: Minimum number of functions with enough samples.
    """
    none = no_drift(len(rates[0]))
    often = (samples[0] + samples[1] >= _MIN_SAMPLES) & (rates[0] > 0) & (rates[1] > 0)
    if often.sum() < functions or not largest:
        return none
    ratio = np.log(rates[1][often] / rates[0][often])
    variance = 1 / samples[0][often] + 1 / samples[1][often]
    exact = 1 / variance
    weight = np.minimum(exact, _MAX_WEIGHT * exact.sum())
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
