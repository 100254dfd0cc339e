"""The last stack of each thread: what a sample has whose thread has not run since the one before."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from pyprof.model.stacks import StackTable
from pyprof.session.rows import Rows


class LastStacks:
    """Of one recording; nodes of its window's tree. threads: numbers of those that have one."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    @property
    def threads(self) -> Set[int]:
        return self._last.keys()

    def follow(self, rows: Rows) -> None:
        """Give each UNCHANGED row, whose node is not known, the stack of its thread's sample before it."""
        order = np.argsort(rows.thread, kind="stable")
        thread, node, state = rows.thread[order], rows.node[order], rows.state[order]
        firsts = np.flatnonzero(np.diff(thread, prepend=np.int32(-1)))
        for first in firsts.tolist():
            if node[first] < 0:
                node[first], state[first] = self._last.get(int(thread[first]), (0, 0))
        source = np.maximum.accumulate(np.where(node >= 0, np.arange(len(node)), 0))
        node, state = node[source], state[source]
        rows.node[order], rows.state[order] = node, state
        lasts = np.append(firsts[1:], len(order)) - 1
        stacks = zip(node[lasts].tolist(), state[lasts].tolist(), strict=True)
        self._last.update(zip(thread[lasts].tolist(), stacks, strict=True))

    def carry(self, stacks: StackTable, alive: Set[int]) -> StackTable:
        """A new tree, with the stacks of threads that are alive; the others are forgotten."""
        fresh = StackTable()
        self._last = {thread: stack for thread, stack in self._last.items() if thread in alive}
        place = fresh.adopt(stacks, [node for node, _ in self._last.values()])
        self._last = {thread: (place[node], state) for thread, (node, state) in self._last.items()}
        return fresh
