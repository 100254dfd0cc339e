"""How much time samples of running threads stand for, where the kernel reports how long each thread ran.

A timer that is due while a processor changes threads comes after the change. A thread that leaves its processor every
few microseconds has fewer samples than time therefore, at any rate: its samples share the exact time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from pyprof.collectors.bpf.records import I64
from pyprof.collectors.bpf.sampler import Waiting

NOT_KNOWN = -1


class RunTimes:
    """Of one recording. What a thread ran without a sample counts for its next ones."""

    def __init__(self) -> None:
        self._accounted: dict[int, int] = {}

    def begin(self, at_ns: int, threads: Iterable[Waiting]) -> None:
        """The time before is nobody's."""
        self._accounted = {each.tid: _ran(each, at_ns) for each in threads}

    def share(
        self, tids: I64, threads: Iterable[Waiting], now_ns: int, room_ns: Mapping[int, int], most_ns: int
    ) -> I64:
        """Nanoseconds that each of these samples stands for. tids: (n,), of threads that ran until now_ns. NOT_KNOWN
        where nothing was known of a thread when this was asked last.

        room_ns: tid -> most time that a thread can have run since then; most_ns: the same of all others. What a thread
        ran beyond it, because the table is of a later time, counts the next time.
        """
        length = np.full(len(tids), NOT_KNOWN, np.int64)
        lanes: dict[int, list[int]] = {}
        for lane, tid in enumerate(tids.tolist()):
            lanes.setdefault(tid, []).append(lane)
        accounted = {}
        for each in threads:
            ran, before = _ran(each, now_ns), self._accounted.get(each.tid)
            own = lanes.get(each.tid)
            if before is None or before > ran:  # another thread has the number now
                before = ran
            elif own:
                some = min(ran - before, room_ns.get(each.tid, most_ns))
                length[own] = max(some // len(own), 1)
                before += some
            accounted[each.tid] = before
        self._accounted = accounted
        return length


def _ran(thread: Waiting, now_ns: int) -> int:
    return thread.run_ns + (max(now_ns - thread.on_ns, 0) if thread.on_ns else 0)
