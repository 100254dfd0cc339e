"""Time without switch records: rings were full, or a thread that switches often was paused by its duty cycle.

The time in a gap is divided like the thread's time around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pyprof.collectors.switch_events import I64, LEAST_ON_NS, Gap, Mask

_LEAST_KNOWN = 0.05


class Gaps:
    """until_ns: what was before has been attributed. owed: tid -> nanoseconds off its processor of which there were no
    records, of threads that were left alone; resumed: when records of them came again. lost_ns: time before it
    of which there are no records of anybody.
    """

    def __init__(self, now_ns: int) -> None:
        self.until_ns = now_ns
        self.owed: dict[int, int] = {}
        self.lost_ns = 0
        self.resumed: dict[int, int] = {}

    def skip(self, tids: Iterable[int], now_ns: int, ran_ns: Mapping[int, int], ended_ns: Mapping[int, int]) -> None:
        """There are no records of these threads for all of the time until now. ran_ns: what they ran in it. ended_ns:
        when threads ended.
        """
        for tid in tids:
            passed_ns = min(now_ns, ended_ns.get(tid, now_ns)) - self.until_ns
            self.owed[tid] = self.owed.get(tid, 0) + max(passed_ns - ran_ns.get(tid, 0), 0)

    def known_ns(self, now_ns: int, gaps: Sequence[Gap]) -> int:
        """How much of the time since until_ns there are records of; 0 where that is too little to go by."""
        passed = now_ns - self.until_ns
        known = passed - sum(max(min(end, now_ns) - max(start, self.until_ns), 0) for start, end in gaps)
        return known if known > _LEAST_KNOWN * passed else 0

    def counted(self, tid: I64, length_ns: I64, carries: Mask, displaced: Mask, now_ns: int, known_ns: int) -> I64:
        """(n,): the lengths of intervals, those of threads that were left alone with what is owed to them. carries:
        intervals that can have it. displaced: those in which a thread waited for a processor and that are not shown:
        what is owed to it was spent like that, too. It is given when a thread was seen for a while: a short time says
        little.
        """
        usual = (now_ns - self.until_ns + self.lost_ns) / known_ns if known_ns else 1.0
        result: I64 = np.rint(length_ns * usual).astype(np.int64)
        for each, owed in list(self.owed.items()):
            rows = (tid == each) & carries
            seen = int(length_ns[rows].sum())
            off = seen + int(length_ns[(tid == each) & displaced].sum())
            if now_ns - self.resumed.get(each, 0) < LEAST_ON_NS:
                self.owed[each] = max(owed - off, 0)
            elif seen:
                self.resumed.pop(each, None)
                result[rows] = np.rint(length_ns[rows] * (owed / off)).astype(np.int64)
                del self.owed[each]
        return result


def merged(gaps: Iterable[Gap]) -> list[Gap]:
    """The same time, none of it twice: rings of several processors may be full at once."""
    found: list[Gap] = []
    for low, high in sorted(gaps):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def overlap(start: I64, end: I64, gaps: Sequence[Gap]) -> I64:
    """(n,): how much of each interval lies in gaps, which do not overlap."""
    total = np.zeros(len(start), np.int64)
    for low, high in gaps:
        total += np.maximum(np.minimum(end, high) - np.maximum(start, low), 0)
    return total
