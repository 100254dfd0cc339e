"""Which lanes of a walk have the same frames outside their innermost one: in passes over all of them.

The sums by which they are found are compared no further than to find candidates: then all words are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_PLACES = np.arange(1, 1025, dtype=np.uint64) * _MIX
_PLACES = (_PLACES ^ _PLACES >> np.uint64(29)) * _MIX | np.uint64(1)
"""A factor for each place of a frame in its stack."""


def alike(begin: I64, end: I64, word: U64, sp: U64, kind: I64) -> I64:
    """The group of each lane; lanes of one group are alike. begin, end: of each lane's frames in word and sp, two at
    least. kind: lanes of another one are not alike.
    """
    counts = end - begin - 1
    starts = np.cumsum(counts) - counts
    inside = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    at = np.repeat(begin + 1, counts) + inside
    words, sps = word[at], sp[at]
    mixed = (words * _MIX ^ sps) * _PLACES[inside % len(_PLACES)]
    sums = np.add.reduceat(mixed ^ mixed >> np.uint64(31), starts) + kind.astype(np.uint64) * _MIX
    _, first, group = np.unique(sums, return_index=True, return_inverse=True)
    one = first[group := group.ravel()]
    same = (counts == counts[one]) & (kind == kind[one])
    other = np.repeat(np.where(same, begin[one], begin) + 1, counts) + inside
    same &= np.logical_and.reduceat((words == word[other]) & (sps == sp[other]), starts)
    apart = np.flatnonzero(~same)
    group[apart] = len(first) + np.arange(len(apart))
    found: I64 = group
    return found
