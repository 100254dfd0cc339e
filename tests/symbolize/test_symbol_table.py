"""Tests of the table of address ranges against a linear search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.symbolize.symbol_table import MAX_UNSIZED, SymbolRows, SymbolTable

pytestmark = pytest.mark.system

LIMIT = 400

Row = tuple[int, int, int]
"""(start, size, rank) of a symbol."""


def table_of(rows: list[Row]) -> SymbolTable:
    """Return a table in which each row's name is its index."""
    strings, at = b"", []
    for number in range(len(rows)):
        at.append(len(strings))
        strings += b"%d\0" % number
    start, size = (np.array([row[column] for row in rows], np.uint64) for column in (0, 1))
    rank = np.array([row[2] for row in rows], np.int64)
    limit = np.full(len(rows), LIMIT, np.uint64)
    return SymbolTable([SymbolRows(start, size, limit, rank, np.array(at, np.int64), memoryview(strings))])


def searched(rows: list[Row], svma: int) -> int | None:
    """Return the row with the greatest start that contains svma.

    At one start rows with a size come before those without, then the rank and the order decide.
    """
    best: dict[int, int] = {}
    for number in sorted(range(len(rows)), key=lambda n: (rows[n][1] == 0, rows[n][2], n)):
        best.setdefault(rows[number][0], number)
    sized = {start: number for start, number in best.items() if rows[number][1]}
    ends = {start: start + rows[number][1] for start, number in sized.items()}
    for start, number in best.items():
        inside = any(other < start < ends[other] for other in sized)
        if not rows[number][1] and not inside:
            following = [s for s in best if s > start and (s in sized or not _inside(s, ends))]
            ends[start] = min([*following, LIMIT, start + MAX_UNSIZED])
    holding = [start for start, end in ends.items() if start <= svma < end]
    return best[max(holding)] if holding else None


def _inside(svma: int, ends: dict[int, int]) -> bool:
    return any(start < svma < end for start, end in ends.items())


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 2)), min_size=1, max_size=25))
def test_table_finds_what_a_plain_search_finds(rows: list[Row]) -> None:
    table = table_of(rows)
    svmas = np.arange(90).astype(np.uint64)
    for svma, row in zip(range(90), table.find(svmas).tolist(), strict=True):
        expected = searched(rows, svma)
        assert (None if row < 0 else int(table.name(row))) == expected


def test_empty_table_finds_nothing() -> None:
    assert SymbolTable([]).find(np.arange(3).astype(np.uint64)).tolist() == [-1, -1, -1]


def test_size_that_overflows_the_address_space_is_no_size() -> None:
    table = table_of([(2**64 - 16, 2**63, 0), (100, 10, 0)])
    assert table.find(np.array([2**64 - 10, 105], np.uint64)).tolist() == [-1, 0]
