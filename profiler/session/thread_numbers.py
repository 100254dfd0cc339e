"""Numbers of a recording's threads. A later thread with the same tid gets another number."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import numpy.typing as npt

from pyprof.model.sample import SampleBatch
from pyprof.model.thread_keys import ThreadKey


class ThreadNumbers:
    """A table that gives each thread of a recording a number that is never reused.

    A collector that does not know the process of a thread reports the tid as its pid. The pid of any other collector
    has precedence.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._pids: dict[int, int] = {}
        self._next = 0

    def of(self, batch: SampleBatch) -> npt.NDArray[np.int32]:
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

    def keep(self, numbers: Set[int]) -> None:
        """Forget the numbers of all threads except those with these numbers."""
        self._numbers = {ids: number for ids, number in self._numbers.items() if number in numbers}
        self._pids = {number: pid for number, pid in self._pids.items() if number in numbers}
