"""Finds overlaps among many address ranges, in n log n steps for any ranges."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.columns import distinct

Flags = npt.NDArray[np.bool_]
U64 = npt.NDArray[np.uint64]


def uncovered(start: U64, end: U64) -> Flags:
    """Return which address ranges no later range overlaps, shape (n,). Each start must be below its end."""
    found = np.ones(len(start), np.bool_)
    if np.all(start[1:] >= end[:-1]):
        return found
    order = np.argsort(start, kind="stable")
    low = start[order]
    reach = end[order]
    np.maximum.accumulate(reach, out=reach)
    beside = low[1:] < reach[:-1]
    if not beside.any():
        return found
    alone = np.ones(len(start), np.bool_)
    alone[1:] &= ~beside
    alone[:-1] &= ~beside
    places = np.sort(order[~alone])
    found[places] = _on_top(start[places], end[places])
    return found


def _on_top(start: U64, end: U64) -> Flags:
    """Return which address ranges no later range overlaps, for ranges with many overlaps.

    The edges of all ranges delimit cells. For each cell the last range over it is found; a range is uncovered if it is
    the last one over all of its cells. A range of 2^k to 2^(k+1) - 1 cells is covered by two runs of 2^k cells. At the
    first cell of each run the last range with it is stored, and then passed on to the two runs of half that length.
    """
    edges = distinct(np.concatenate([start, end]))
    first, behind = (np.searchsorted(edges, each).astype(np.int32) for each in (start, end))
    cells = behind - first
    level = np.frexp(cells)[1] - 1
    last = np.full(len(edges), -1, np.int32)
    for k in range(int(level.max()), -1, -1):
        here = np.flatnonzero(level == k).astype(np.int32)
        for at in (first[here], behind[here] - (1 << k)):
            np.maximum.at(last, at, here)
        if k:
            half = 1 << k - 1
            handed = last[:-half].copy()
            np.maximum(last[half:], handed, out=last[half:])
    seen = np.bincount(last[last >= 0], minlength=len(start))
    found: Flags = seen == cells
    return found


def touching(start: U64, end: U64, low: U64, high: U64) -> tuple[Flags, Flags]:
    """Find the overlaps between two sets of address ranges.

    Args:
        start: (n,) Start of sorted ranges that do not overlap each other.
        end: (n,) End of the sorted ranges.
        low: (m,) Start of other ranges.
        high: (m,) End of the other ranges.

    Returns:
        (which of the n ranges overlap one of the others, which of the m ranges overlap one of the n).
    """
    first = np.searchsorted(end, low, side="right")
    behind = np.maximum(np.searchsorted(start, high, side="left"), first)
    steps = np.bincount(first, minlength=len(start) + 1) - np.bincount(behind, minlength=len(start) + 1)
    return np.cumsum(steps)[:-1] > 0, behind > first
