"""Adds stacks around the stack of a wait: the waker's stack inside it, or the lock outside it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.sample import SampleBatch, Surroundings
from pyprof.model.stacks import StackTable, marker_key
from pyprof.session.sample_rows import Rows

_MOST = 1 << 16


class SurroundedStacks:
    """The addition of locks and wakers to the wait stacks of one window."""

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        self._referred: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[int, Surroundings, int], int] = {}

    def refer(self, batch: SampleBatch, nodes: npt.NDArray[np.int32]) -> None:
        """Remember stacks of wakers, which later samples of waits name by tid and time."""
        if len(self._referred) > _MOST:
            self._referred.clear()
        keys = zip(batch.tid.tolist(), batch.time_ns.tolist(), strict=True)
        self._referred.update(zip(keys, nodes.tolist(), strict=True))

    def surround(self, batch: SampleBatch, rows: Rows) -> None:
        """Add locks and wakers to the stacks of a batch's rows, whose own stacks must be known."""
        for lane, around in batch.around.items():
            waker = self._referred.get(around.waker, 0)
            key = (int(rows.node[lane]), around._replace(waker=(0, 0)), waker)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._surrounded(*key)
            rows.node[lane] = found

    def _surrounded(self, node: int, around: Surroundings, waker: int) -> int:
        stacks = self._stacks
        if around.outer is not None:
            node = stacks.within(node, around.outer)
        if around.inner is not None:
            node = stacks.hang(stacks.child(node, marker_key(around.inner)), waker)
        return node
