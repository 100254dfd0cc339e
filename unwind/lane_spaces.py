"""Address spaces of lanes that are walked together.

Lanes of one address space share its rules. But an agent's batch has a few lanes of each of many processes, and a step
of arrays costs the same for a few lanes as for a hundred. What a step does to a lane is the same in all of them: only
which rule covers a pc is another question in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.model.columns import distinct
from pyprof.unwind.index import SpaceIndex
from pyprof.unwind.single_lane import PlainWalker

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


class LaneSpaces(Protocol):
    """lane, in all methods: indexes into the batch."""

    def rule_ids(self, lane: I64, pcs: U64, exact: Mask) -> I64:
        """Of lookup pcs. All shapes: (n,)."""
        ...

    def parts(self, lane: I64) -> Iterator[tuple[I64, SpaceIndex, PlainWalker]]:
        """For each address space: which of these lanes are in it."""
        ...


class ManySpaces:
    """LaneSpaces of lanes in several, a few in each. Their rules do not change meanwhile."""

    def __init__(self, lanes: int, members: Sequence[tuple[I64, SpaceIndex, PlainWalker]]) -> None:
        """lanes: of the whole batch. members: lanes of each space."""
        self._members = members
        self._number = np.zeros(lanes, np.int64)
        for number, (lane, _, _) in enumerate(members):
            self._number[lane] = number
        self._known: dict[tuple[int, int, bool], int] = {}

    def rule_ids(self, lane: I64, pcs: U64, exact: Mask) -> I64:
        known, found = self._known, []
        for key in zip(self._number[lane].tolist(), pcs.tolist(), exact.tolist(), strict=True):
            rule = known.get(key)
            if rule is None:
                number, pc, is_exact = key
                rule = known[key] = self._members[number][1].rule_id(pc, is_exact)
            found.append(rule)
        return np.array(found, np.int64)

    def parts(self, lane: I64) -> Iterator[tuple[I64, SpaceIndex, PlainWalker]]:
        of = self._number[lane]
        for number in distinct(of).tolist():
            _, index, single = self._members[number]
            yield np.flatnonzero(of == number), index, single
