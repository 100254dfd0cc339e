"""Costs of each function in each slice of time. A sample counts once for each function on its stack."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.merge import recorded_until
from pyprof.model.profile import Profile
from pyprof.records import dataclass

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

SLICES = 40
"""Number of time slices of a recording for significance tests.

A slice must be long enough to depend little on the one before, and there must be enough slices to estimate chance.
"""
MIN_SLICES = 12
_MIN_NS = 50_000_000
MERGED = 4
"""Number of time slices in a group. Variation is measured over single slices and over groups."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Costs of functions, each of shape (functions,): `own` as the innermost function, `total` anywhere on the
    stack.
    """

    own: F64
    total: F64


@dataclass(frozen=True, slots=True)
class SlicedSums:
    """The costs of functions in each slice of time.

    Attributes:
        own: (slices, functions) Cost as the innermost function.
        total: (slices, functions) Cost anywhere on the stack.
        whole: (slices,) Cost of all samples.
    """

    own: F64
    total: F64
    whole: F64


class Stacks:
    """The functions on each stack of a profile, indexed for sums.

    Nodes of the tree are numbered in depth-first order, so all nodes below a node are a range.
    """

    def __init__(self, profile: Profile, rows: list[list[int]], functions: int) -> None:
        """Index the functions on each stack of a profile.

        Args:
            profile: The profile.
            rows: Functions of each frame, outermost first.
            functions: Number of functions.
        """
        self._profile, self._functions = profile, functions
        self._place, self._innermost, (self._function, self._first, self._last) = _walked(profile, rows, functions)

    def sums(self, weights: npt.NDArray[np.generic], chosen: I64 | slice = slice(None)) -> Sums:
        """Return the sums of the samples' values, by function.

        Args:
            weights: (samples,) Values of the samples.
            chosen: Indices of the samples to use.
        """
        nodes, values = self._profile.stack[chosen], weights[chosen]
        innermost = self._innermost[nodes] + 1
        own = _summed(innermost, values, self._functions + 1)[1:]
        by_place = _summed(self._place[nodes], values, len(self._place))
        upto = np.append(0.0, np.cumsum(by_place))
        below = upto[self._last] - upto[self._first]
        return Sums(own, _summed(self._function, below, self._functions))

    def sliced(self, weights: npt.NDArray[np.int64], slices: int, wanted: I64) -> SlicedSums:
        """Sum values by function in equal slices of the recorded time.

        Args:
            weights: (samples,) Values of the samples.
            slices: Number of slices.
            wanted: (w,) Functions.
        """
        profile = self._profile
        at = np.clip(recorded_until(profile) * slices // max(profile.recorded_ns, 1), 0, slices - 1)
        order = np.argsort(at, kind="stable")
        ends = np.searchsorted(at[order], np.arange(slices + 1))
        own, total = np.zeros((slices, len(wanted))), np.zeros((slices, len(wanted)))
        for each in range(slices):
            found = self.sums(weights, order[ends[each] : ends[each + 1]])
            own[each], total[each] = found.own[wanted], found.total[wanted]
        return SlicedSums(own, total, _summed(at, weights, slices))


def _summed(at: I64, values: npt.NDArray[np.generic], length: int) -> F64:
    return np.bincount(at, values.astype(np.float64), length).astype(np.float64)


def slices_of(profile: Profile) -> int:
    """Return the number of time slices for a profile, 0 if it is too short."""
    count = min(SLICES, profile.recorded_ns // _MIN_NS) // MERGED * MERGED
    return count if count >= MIN_SLICES else 0


def _walked(profile: Profile, rows: list[list[int]], functions: int) -> tuple[I64, I64, tuple[I64, I64, I64]]:
    """Number the nodes of the stack tree in depth-first order.

    Returns:
        Number of each node; innermost function of each node, -1 if there is none; and for outermost occurrences of
        functions the columns (function, first number, first number after).
    """
    parent, frame = profile.parent.tolist(), profile.frame.tolist()
    children: list[list[int]] = [[] for _ in parent]
    for node in range(len(parent) - 1, 0, -1):
        children[parent[node]].append(node)
    place, innermost = [0] * len(parent), [-1] * len(parent)
    inside = bytearray(functions)
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    entered: list[list[int]] = []
    todo, at = children[0], 1
    while todo:
        node = todo.pop()
        if node < 0:
            for pair in entered.pop():
                found[2][pair] = at
                inside[found[0][pair]] = 0
            continue
        place[node] = at
        row, pairs = rows[frame[node]], []
        for function in row:
            if not inside[function]:
                inside[function] = 1
                pairs.append(len(found[0]))
                for column, number in zip(found, (function, at, 0), strict=True):
                    column.append(number)
        entered.append(pairs)
        at += 1
        if row:
            innermost[node] = row[-1]
        todo.append(-1)
        todo.extend(children[node])
    columns = [np.array(column, np.int64) for column in found]
    return np.array(place, np.int64), np.array(innermost, np.int64), (columns[0], columns[1], columns[2])
