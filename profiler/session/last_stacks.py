"""The last stack of each thread, for samples of threads that have not run since their previous sample."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from pyprof.model.stacks import StackTable
from pyprof.session.sample_rows import Rows


class LastStacks:
    """The last stack of each thread of a recording, as nodes of the current window's tree."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    @property
    def threads(self) -> Set[int]:
        """The numbers of the threads that have a stack."""
        return self._last.keys()

    def follow(self, rows: Rows) -> None:
        """Give each row of a sample without new stack (UNCHANGED) the stack of the previous sample of its thread."""
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
        """Return a new stack tree with the last stacks of live threads. Forget the others."""
        fresh = StackTable()
        self._last = {thread: stack for thread, stack in self._last.items() if thread in alive}
        place = fresh.adopt(stacks, [node for node, _ in self._last.values()])
        self._last = {thread: (place[node], state) for thread, (node, state) in self._last.items()}
        return fresh
