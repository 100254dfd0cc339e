"""Time without switch records: rings were full, or a thread that switches often was paused by its duty cycle.

The time in a gap is divided like the thread's time around it. The running time of a paused thread is read from /proc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pyprof.collectors.linux import procfs
from pyprof.collectors.switch_events import I64, MIN_ON_NS, Gap, Mask

_MIN_KNOWN = 0.05


class Gaps:
    """The spans of time without switch records of threads.

    Attributes:
        until_ns: End of the attributed time.
        unattributed_ns: Off-CPU nanoseconds without records by tid, of threads that were paused.
        lost_ns: Time before until_ns of which there are no records of any thread.
        resumed: Time at which records of a thread resumed, by tid.
    """

    def __init__(self, now_ns: int) -> None:
        self.until_ns = now_ns
        self.unattributed_ns: dict[int, int] = {}
        self.lost_ns = 0
        self.resumed: dict[int, int] = {}

    def skip_time(
        self, tids: Iterable[int], now_ns: int, ran_ns: Mapping[int, int], ended_ns: Mapping[int, int]
    ) -> None:
        """Add the time until now to the time without switch records of some threads.

        Args:
            tids: The threads.
            now_ns: End of the time.
            ran_ns: Their running time in it.
            ended_ns: Ends of threads.
        """
        for tid in tids:
            passed_ns = min(now_ns, ended_ns.get(tid, now_ns)) - self.until_ns
            self.unattributed_ns[tid] = self.unattributed_ns.get(tid, 0) + max(passed_ns - ran_ns.get(tid, 0), 0)

    def known_ns(self, now_ns: int, gaps: Sequence[Gap]) -> int:
        """Return how much of the time since until_ns has switch records, or 0 if that is too little for an estimate."""
        passed = now_ns - self.until_ns
        known = passed - sum(max(min(end, now_ns) - max(start, self.until_ns), 0) for start, end in gaps)
        return known if known > _MIN_KNOWN * passed else 0

    def add_unattributed(
        self, tid: I64, length_ns: I64, carries: Mask, displaced: Mask, now_ns: int, known_ns: int
    ) -> I64:
        """Return the lengths (n,) of off-CPU intervals, including the off-CPU time of their threads that had no records
        (owed time).

        Owed time is assigned only after a thread was seen for a while, because a short time is no basis for an
        estimate.

        Args:
            tid: Threads of the intervals.
            length_ns: Their lengths.
            carries: Intervals that can get owed time.
            displaced: Intervals in which a thread waited for a processor and that are not shown. Owed time was spent
                likewise.
            now_ns: Current time.
            known_ns: Result of known_ns().
        """
        usual = (now_ns - self.until_ns + self.lost_ns) / known_ns if known_ns else 1.0
        result: I64 = np.rint(length_ns * usual).astype(np.int64)
        for each, owed in list(self.unattributed_ns.items()):
            rows = (tid == each) & carries
            seen = int(length_ns[rows].sum())
            off = seen + int(length_ns[(tid == each) & displaced].sum())
            if now_ns - self.resumed.get(each, 0) < MIN_ON_NS:
                self.unattributed_ns[each] = max(owed - off, 0)
            elif seen:
                self.resumed.pop(each, None)
                result[rows] = np.rint(length_ns[rows] * (owed / off)).astype(np.int64)
                del self.unattributed_ns[each]
        return result


def merge_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """Merge overlapping gaps in the switch records, because rings of several processors may be full at once."""
    found: list[Gap] = []
    for low, high in sorted(gaps):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def measure_overlap(start: I64, end: I64, gaps: Sequence[Gap]) -> I64:
    """Return how much of each interval (n,) is in gaps of the switch records, which do not overlap."""
    total = np.zeros(len(start), np.int64)
    for low, high in gaps:
        total += np.maximum(np.minimum(end, high) - np.maximum(start, low), 0)
    return total


class PausedThreads:
    def __init__(self) -> None:
        self._run_ns: dict[int, int] = {}
        self._started: dict[int, int] = {}

    def watch_threads(self, tids: Iterable[int], running: bool) -> None:
        """Start to watch the running time of threads whose switch events are paused.

        Args:
            tids: The threads.
            running: True if their running time is known from samples.
        """
        for tid in tids:
            if not running:
                self._run_ns[tid] = _run_ns(tid)
            if (start := procfs.read_start_ticks(tid)) is not None:
                self._started[tid] = start

    def keep_only(self, tids: set[int]) -> None:
        """Forget all threads whose switch events are paused, except these."""
        for kept in (self._run_ns, self._started):
            for tid in kept.keys() - tids:
                del kept[tid]

    def find_ended(self, tids: Iterable[int]) -> list[int]:
        """Return the paused threads that have ended, even if another thread has the tid now."""
        found = []
        for tid in tids:
            start = procfs.read_start_ticks(tid)
            if start is None or self._started.get(tid, start) != start:
                self._started.pop(tid, None)
                found.append(tid)
        return found

    def read_run_ns(self) -> dict[int, int]:
        """Return the running time of each paused thread since the last call, as the kernel counts it."""
        before, self._run_ns = self._run_ns, {tid: _run_ns(tid) for tid in self._run_ns}
        return {tid: max(self._run_ns[tid] - ns, 0) for tid, ns in before.items()}


def _run_ns(tid: int) -> int:
    try:
        with open(f"/proc/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
