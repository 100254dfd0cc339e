"""Operations on columns of integers: distinct values, their numbers, masks, and sums.

The functions avoid numpy.ma: np.unique and np.isin import it, which takes 10 ms.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Integer = TypeVar("Integer", bound=np.integer)
_PIECE = 1 << 16
MAX_SUM = 1 << 62
"""Maximum sum of the absolute values of a profile's samples. The difference of two such sums fits into 64 bits, too."""


def largest_sum(values: npt.NDArray[np.int64]) -> float:
    """Return the largest of the columns' sums of absolute values, for an array of shape (rows, columns)."""
    return float(np.abs(values.astype(np.float64)).sum(axis=0).max()) if values.size else 0.0


def distinct(values: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """Return the distinct values of an array of any shape, ascending, shape (n,)."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: npt.NDArray[Integer] = ordered[first]
    return found


def numbered(values: npt.NDArray[Integer]) -> tuple[npt.NDArray[Integer], npt.NDArray[np.int64]]:
    """Return the distinct values of an array, and the index of each element's value among them.

    There may be millions of values. They are processed in parts to limit the temporary memory.

    Returns:
        (distinct values, ascending; int64 index of each element's value, shape (n,)).
    """
    parts = [slice(at, at + _PIECE) for at in range(0, len(values), _PIECE)]
    found = distinct(np.concatenate([values[:0], *(distinct(values[part]) for part in parts)]))
    which = np.empty(len(values), np.int64)
    for part in parts:
        which[part] = np.searchsorted(found, values[part])
    return found, which


def among(values: npt.NDArray[Integer], wanted: Collection[int]) -> npt.NDArray[np.bool_]:
    """Return a mask of an array: a bool array of shape (n,) that is True for values in `wanted`."""
    return np.isin(values, list(wanted)) if len(values) and wanted else np.zeros(len(values), np.bool_)
