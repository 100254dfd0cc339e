"""Numbers of a recording's threads: a thread that has the tid of an earlier one is another."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import numpy.typing as npt

from pyprof.model.keys import ThreadKey
from pyprof.model.sample import SampleBatch


class ThreadNumbers:
    """A number is never given twice. Where a source does not know a thread's process, it says the thread itself: what
    others say counts.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._pids: dict[int, int] = {}
        self._next = 0

    def of(self, batch: SampleBatch) -> npt.NDArray[np.int32]:
        """(n,) of each lane's thread; new threads get one."""
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
        """The threads of these numbers."""
        return {
            number: ThreadKey(self._pids[number], tid, started)
            for (tid, started), number in self._numbers.items()
            if number in numbers
        }

    def keep(self, numbers: Set[int]) -> None:
        """Forget all other threads."""
        self._numbers = {ids: number for ids, number in self._numbers.items() if number in numbers}
        self._pids = {number: pid for number, pid in self._pids.items() if number in numbers}
