"""The time that samples of running threads stand for, from the kernel's account of their turns.

If a timer is due while a processor switches threads, it fires after the switch. So a thread that leaves its processor
every few microseconds has too few samples at any rate. Its samples therefore share the exact time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from pyprof.collectors.bpf.records import I64
from pyprof.collectors.bpf.sampler import WaitingThread

UNKNOWN_NS = -1


class RunTimes:
    """On-CPU time of each thread in one recording. Time that a thread ran without a sample counts for its next
    samples.
    """

    def __init__(self) -> None:
        self._accounted: dict[int, int] = {}

    def start_accounting(self, at_ns: int, threads: Iterable[WaitingThread]) -> None:
        """Start the accounting of on-CPU time now: earlier run time is not accounted."""
        self._accounted = {each.tid: _ran(each, at_ns) for each in threads}

    def distribute_run_time(
        self, tids: I64, threads: Iterable[WaitingThread], now_ns: int, room_ns: Mapping[int, int], most_ns: int
    ) -> I64:
        """Return the nanoseconds that each sample stands for, UNKNOWN_NS if its thread was unknown at the last call.

        A thread may have run longer than the limits below, because the table is of a later time. The rest counts in the
        next call.

        Args:
            tids: Threads of the samples (n,), which ran until now_ns.
            threads: The table of threads.
            now_ns: Time of the samples.
            room_ns: Maximum time that each thread can have run since the last call, by tid.
            most_ns: The same for all other threads.
        """
        length = np.full(len(tids), UNKNOWN_NS, np.int64)
        lanes: dict[int, list[int]] = {}
        for lane, tid in enumerate(tids.tolist()):
            lanes.setdefault(tid, []).append(lane)
        accounted = {}
        for each in threads:
            ran, before = _ran(each, now_ns), self._accounted.get(each.tid)
            own = lanes.get(each.tid)
            if before is None or before > ran:  # the tid belongs to another thread now
                before = ran
            elif own:
                some = min(ran - before, room_ns.get(each.tid, most_ns))
                length[own] = max(some // len(own), 1)
                before += some
            accounted[each.tid] = before
        self._accounted = accounted
        return length


def _ran(thread: WaitingThread, now_ns: int) -> int:
    return thread.run_ns + (max(now_ns - thread.on_ns, 0) if thread.on_ns else 0)
