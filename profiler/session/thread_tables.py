"""Tables of a recording's threads: their numbers, and the last stack of each.

A later thread with the same tid gets another number. The last stack serves samples of a thread that has not run since
its previous sample.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import numpy.typing as npt

from pyprof.model.sample_batch import SampleBatch
from pyprof.model.stacks import StackTable
from pyprof.model.thread_keys import ThreadKey
from pyprof.session.sample_rows import Rows


class ThreadNumbers:
    """A table that gives each thread of a recording a number that is never reused.

    A collector that does not know the process of a thread reports the tid as its pid. The pid of any other collector
    has precedence.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._pids: dict[int, int] = {}
        self._next = 0

    def number_threads(self, batch: SampleBatch) -> npt.NDArray[np.int32]:
        """Return the thread number of each sample, shape (n,). New threads get a new number."""
        started = np.zeros(len(batch), np.int64) if batch.started is None else batch.started
        ids = list(zip(batch.tid.tolist(), started.tolist(), strict=True))
        numbers = [self._number(tid, began) for tid, began in ids]
        for (tid, _), number, pid in set(zip(ids, numbers, batch.pid.tolist(), strict=True)):
            if pid != tid or number not in self._pids:
                self._pids[number] = pid
        return np.array(numbers, np.int32)

    def _number(self, tid: int, started: int) -> int:
        number = self._numbers.get((tid, started))
        if number is None:
            number = self._numbers[tid, started] = self._next
            self._next += 1
        return number

    def keys(self, numbers: Set[int]) -> dict[int, ThreadKey]:
        """Return the keys of the threads with these numbers."""
        return {
            number: ThreadKey(self._pids[number], tid, started)
            for (tid, started), number in self._numbers.items()
            if number in numbers
        }

    def retain_threads(self, numbers: Set[int]) -> None:
        """Forget the numbers of all threads except those with these numbers."""
        self._numbers = {ids: number for ids, number in self._numbers.items() if number in numbers}
        self._pids = {number: pid for number, pid in self._pids.items() if number in numbers}


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
        place = fresh.copy_stacks(stacks, [node for node, _ in self._last.values()])
        self._last = {thread: (place[node], state) for thread, (node, state) in self._last.items()}
        return fresh
