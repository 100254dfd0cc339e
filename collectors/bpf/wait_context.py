"""The context of waits: the lock outside each stack, and inside it the waker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyprof.collectors.bpf.abi import Flag
from pyprof.collectors.bpf.lock_waits import LockWaits
from pyprof.collectors.bpf.records import WaitEnds
from pyprof.collectors.bpf.sample_source import BpfSource
from pyprof.collectors.bpf.wait_accounting import ContinuedWait, StacklessWait
from pyprof.collectors.bpf.wakers import describe_waker
from pyprof.collectors.linux.sampled_arch import HERE
from pyprof.model.marker_frames import Mark
from pyprof.model.sample_batch import SampleBatch, Surroundings
from pyprof.options import CollectOptions

_NOT_ENDED = -1

LaneNumbers = npt.NDArray[np.intp]
Around = dict[int, Surroundings]


class WaitContext:
    """The locks and wakers of the waits in a recording; `addresses` maps a tid to the futex for which it last
    waited.
    """

    def __init__(self, options: CollectOptions, locks: LockWaits) -> None:
        self.locks = locks
        self.addresses: dict[int, int] = {}
        self._options = options

    def describe_records(
        self, batch: SampleBatch, source: BpfSource, ends: Mapping[int, int], waits: LaneNumbers, lanes: LaneNumbers
    ) -> Around:
        """Return the lock and the waker of each wait that has a stack.

        Args:
            batch: The batch.
            source: The records.
            ends: See WaitTimes.
            waits: Indices of all waits among the records.
            lanes: Indices of the batch's samples among the records.
        """
        found: Around = {}
        if not self._options.wakers:
            return found
        records = source.records
        ended = {int(waits[lane]): end for lane, end in ends.items()}
        for n, lane in enumerate(lanes.tolist()):
            if records.flags[lane] & Flag.WAITS:
                tid = int(batch.tid[n])
                self.addresses[tid] = int(records.regs[lane, HERE.first_argument])
                found[n] = self._of(int(batch.pid[n]), tid, ended.get(lane, _NOT_ENDED), source.ended)
        return found

    def describe_times(
        self, batch: SampleBatch, times: Sequence[ContinuedWait | StacklessWait], ended: WaitEnds
    ) -> Around:
        """Return the lock and the waker of waiting time without a stack, by the row of the batch."""
        if not self._options.wakers:
            return {}
        return {n: self._of(int(batch.pid[n]), each.tid, each.end, ended) for n, each in enumerate(times)}

    def describe_sleepers(self, batch: SampleBatch) -> Around:
        """Return the locks of threads that have slept since before the recording."""
        if not self._options.locks:
            return {}
        ids = zip(batch.pid.tolist(), batch.tid.tolist(), strict=True)
        return {n: Surroundings(outer=self._lock(pid, tid)) for n, (pid, tid) in enumerate(ids)}

    def _of(self, pid: int, tid: int, end: int, ended: WaitEnds) -> Surroundings:
        around = describe_waker(ended, end) if end >= 0 and ended.why[end] else Surroundings()
        if not self._options.locks:
            return around
        lock = self.locks.make_marker(pid, int(ended.object[end])) if end >= 0 else self._lock(pid, tid)
        return around._replace(outer=lock)

    def _lock(self, pid: int, tid: int) -> Mark:
        return self.locks.make_marker(pid, self.addresses.get(tid, 0))
