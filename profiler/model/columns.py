"""What is in a column of integers, without numpy.ma: np.unique and np.isin import it, which takes 10 ms."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Integer = TypeVar("Integer", bound=np.integer)

_PIECE = 1 << 16
MOST_SUM = 1 << 62
"""Of a profile's values: the difference of two such sums has room in 64 bits, too."""


def largest_sum(values: npt.NDArray[np.int64]) -> float:
    """Of the columns' sums (rows, columns), without signs."""
    return float(np.abs(values.astype(np.float64)).sum(axis=0).max()) if values.size else 0.0


def distinct(values: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """Each value once, ascending (n,), of an array of any shape."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: npt.NDArray[Integer] = ordered[first]
    return found


def numbered(values: npt.NDArray[Integer]) -> tuple[npt.NDArray[Integer], npt.NDArray[np.int64]]:
    """(each value once, ascending; which of them each of the values (n,) is). There may be millions: what is needed
    besides has room for a piece of them.
    """
    parts = [slice(at, at + _PIECE) for at in range(0, len(values), _PIECE)]
    found = distinct(np.concatenate([values[:0], *(distinct(values[part]) for part in parts)]))
    which = np.empty(len(values), np.int64)
    for part in parts:
        which[part] = np.searchsorted(found, values[part])
    return found, which


def among(values: npt.NDArray[Integer], wanted: Collection[int]) -> npt.NDArray[np.bool_]:
    """Which of the values (n,) are wanted."""
    return np.isin(values, list(wanted)) if len(values) and wanted else np.zeros(len(values), np.bool_)
