"""Tests of sets of integers in columns against numpy's functions."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.model import integer_array_operations
from pyprof.model.integer_array_operations import among, distinct, numbered


@pytest.mark.parametrize("shape", [0, 1, 2, 100, (40, 2)])
@pytest.mark.parametrize("kind", [np.int32, np.uint64])
def test_distinct_and_among_are_numpys(shape: int | tuple[int, int], kind: type[np.integer]) -> None:
    values = np.random.default_rng(1).integers(0, 30, shape).astype(kind)
    assert distinct(values).tolist() == np.unique(values).tolist()
    assert distinct(values).dtype == kind
    for wanted in ((), {3, 5, 900}, range(20)):
        assert among(values.ravel(), wanted).tolist() == np.isin(values.ravel(), list(wanted)).tolist()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100])
def test_numbered_is_numpys_unique_however_many_pieces_there_are(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(integer_array_operations, "_PIECE", 8)
    values = np.random.default_rng(size).integers(0, 30, size)
    found, which = numbered(values)
    expected, inverse = np.unique(values, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert which.tolist() == inverse.tolist()
