"""Estimates of the user time that threads spent after their last perf record.

If time in the kernel is left out of samples, this user time is missing, and the kernel's account does not
show it. The account divides the time of a process by where the kernel's timer found the process. All time of
a process that ended before the timer found it counts as user time. In fact such a process is in the kernel
most of the time (fork, exec, exit).

A perf event makes a record after each full period of user time, and each thread starts with a full period. A
thread ends in the kernel. If a period or more lies between its last record and its end, the next record fell
into the kernel, and nothing is missing. If the gap is shorter, the thread left user space at some moment of
the gap. The minimum duration of the way out is the shortest gap of all threads. Threads that lived shorter
than a period may have no record. Their share of user time is assumed to be that of threads that lived longer.
"""

from __future__ import annotations

import numpy as np

from pyprof.collectors.cpu_time_accounting import EndedThreadTimes
from pyprof.collectors.linux.process_cpu_times import TICK_NS
from pyprof.collectors.perf.ring_buffer_records import EXIT, FORK, TID, TIME, U64, OtherRecord, Scan, parse_task
from pyprof.lazy_dataclasses import dataclass


@dataclass(slots=True)
class _Life:
    """The times of the first and last perf record of one thread; `born_ns` is 0 if the thread existed before the
    recording.
    """

    born_ns: int = 0
    last_ns: int = 0
    records: int = 0


class LastRecords:
    """The time of the last perf record of each living thread, and sums over ended threads of the time that
    they lived after their last record.
    """

    def __init__(self) -> None:
        self._lives: dict[int, _Life] = {}
        self._inexact_ns = 0
        self._period_ns = 0
        self._earlier_ns = self._gaps_ns = self._near = self._shortest_ns = 0
        self._unseen_ns = self._seen_ns = self._user_ns = 0

    def add_records(self, found: Scan, words: U64, period_ns: int) -> None:
        """Store the time of the last record of each thread, from one reading of perf's ring buffers.

        Args:
            found: The records that were read.
            words: Memory of the rings.
            period_ns: User time in ns between two records of a thread.
        """
        if period_ns != self._period_ns:
            self._earlier_ns = self._tails_ns()
            self._gaps_ns = self._near = 0
            self._period_ns = self._shortest_ns = period_ns
        if found.samples:
            first = np.concatenate(found.samples)
            first = first[np.argsort(words[first + TIME])][::-1]
            tids, last, counts = np.unique(words[first + TID] >> np.uint64(32), return_index=True, return_counts=True)
            times = words[first[last] + TIME]
            for tid, time_ns, count in zip(tids.tolist(), times.tolist(), counts.tolist(), strict=True):
                life = self._lives.setdefault(tid, _Life())
                life.last_ns = time_ns
                life.records += count
        for record in found.others:
            if record.kind in (FORK, EXIT):
                self._born_or_ended(record)

    def _born_or_ended(self, record: OtherRecord) -> None:
        ids = parse_task(record.body)
        if ids is None:
            return
        pid, _, tid, _ = ids
        if record.kind == FORK:
            self._lives.setdefault(tid, _Life()).born_ns = record.time_ns
        else:
            life = self._lives.pop(tid, _Life())
            if pid == tid and life.born_ns and 0 <= (lived := record.time_ns - life.born_ns) < TICK_NS:
                self._inexact_ns += lived
            self._ended(life, record.time_ns)

    def _ended(self, life: _Life, at_ns: int) -> None:
        lived = at_ns - life.born_ns
        if life.born_ns and not life.records and lived < self._period_ns:
            self._unseen_ns += max(lived, 0)
            return
        if life.born_ns:
            self._seen_ns += lived
            self._user_ns += life.records * self._period_ns
        gap = at_ns - life.last_ns
        if life.records and 0 <= gap < self._period_ns:
            self._gaps_ns += gap
            self._near += 1
            self._shortest_ns = min(self._shortest_ns, gap)

    def _tails_ns(self) -> int:
        return self._earlier_ns + self._gaps_ns - self._near * self._shortest_ns

    def estimate_endings(self, lost_ns: int) -> EndedThreadTimes:
        """Return the estimated user time of ended threads after their last records.

        Args:
            lost_ns: Time in ns that lost records stand for.
        """
        unseen_ns = self._unseen_ns
        if self._seen_ns > 0:
            unseen_ns = round(unseen_ns * min(self._user_ns / self._seen_ns, 1))
        return EndedThreadTimes(self._inexact_ns, self._tails_ns() + unseen_ns + lost_ns)
