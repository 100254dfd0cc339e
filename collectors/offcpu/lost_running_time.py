"""Time that threads ran while the records of their samples were lost.

Context-switch records have separate ring buffers, so they say when a thread ran although its samples found no
room. Where switch records are lost too, the thread's share of the known part of the same reading stands for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pyprof.collectors.context_switch_protocol import BLOCKED, ENDED, I64, IN, Gap, ThreadEvents, count_covered_ns
from pyprof.collectors.offcpu.interval_matching import measure_overlap, merge_gaps


class LostRunningTime:
    """The threads that run, by their switch records, and the running time whose samples were lost."""

    def __init__(self, period_ns: int) -> None:
        """Begin without threads. `period_ns` is the time that one sample stands for."""
        self._period_ns = period_ns
        self._until_ns = 0
        self._runs: dict[int, bool] = {}
        self._balance_ns: dict[int, int] = {}

    def start_at(self, at_ns: int) -> None:
        """Leave out all earlier time."""
        self._until_ns = at_ns

    def find_lost_time(
        self,
        switches: ThreadEvents,
        samples: ThreadEvents,
        lost: Iterable[Gap],
        gaps: Iterable[Gap],
        paused: Collection[int],
        now_ns: int,
    ) -> list[tuple[int, int]]:
        """Return the running time without samples of each thread since the last call, as (tid, nanoseconds).

        Args:
            switches: Context switches since the last call.
            samples: Samples of running threads since then.
            lost: Spans of time in which samples were lost on some processor.
            gaps: Spans of time in which switch records were lost.
            paused: Threads without switch records. Their running time is not known.
            now_ns: End of the time.
        """
        since_ns, self._until_ns = self._until_ns, now_ns
        switches, samples = switches.remove_threads(paused), samples.remove_threads(paused)
        for tid in paused:
            self._runs.pop(tid, None)
        spans = _clip(lost, since_ns, now_ns)
        found = self._measure(switches, samples, spans, _clip(gaps, since_ns, now_ns), since_ns, now_ns)
        order = np.argsort(switches.time_ns, kind="stable")
        for tid, kind in zip(switches.tid[order].tolist(), switches.kind[order].tolist(), strict=True):
            self._runs[tid] = kind == IN
        for tid in switches.tid[switches.kind == ENDED].tolist():
            self._runs.pop(tid, None)
            self._balance_ns.pop(tid, None)
        return found

    def _measure(
        self,
        switches: ThreadEvents,
        samples: ThreadEvents,
        lost: list[Gap],
        gaps: list[Gap],
        since_ns: int,
        now_ns: int,
    ) -> list[tuple[int, int]]:
        if not lost:
            return []
        tid, start, end = self._runs_of(switches, samples, since_ns, now_ns)
        both = [
            (max(low, begin), min(high, stop))
            for low, high in lost
            for begin, stop in gaps
            if low < stop and begin < high
        ]
        known_ns = max(now_ns - since_ns - count_covered_ns(gaps), 1)
        in_lost = measure_overlap(start, end, lost) - measure_overlap(start, end, both)
        share = (end - start - measure_overlap(start, end, gaps)) / known_ns
        ran_ns = in_lost + share * count_covered_ns(both)
        inside = np.zeros(len(samples.tid), np.bool_)
        for low, high in lost:
            inside |= (samples.time_ns > low) & (samples.time_ns < high)
        found = []
        for each in np.unique(tid).tolist():
            sampled = int(np.count_nonzero(inside & (samples.tid == each)))
            unsampled_ns = round(float(ran_ns[tid == each].sum())) - sampled * self._period_ns
            balance_ns = self._balance_ns.get(each, 0) + unsampled_ns
            self._balance_ns[each] = min(balance_ns, 0)
            if balance_ns > 0:
                found.append((each, balance_ns))
        return found

    def _runs_of(
        self, switches: ThreadEvents, samples: ThreadEvents, since_ns: int, now_ns: int
    ) -> tuple[I64, I64, I64]:
        """Return columns (tid, start, end) of the spans in which threads ran. A thread of which no switch is known
        counts if it was sampled or leaves a processor.
        """
        order = np.argsort(switches.time_ns, kind="stable")
        tids, first = np.unique(switches.tid[order], return_index=True)
        before = dict.fromkeys(samples.tid.tolist(), True)
        before |= dict(zip(tids.tolist(), (switches.kind[order][first] != IN).tolist(), strict=True))
        before |= self._runs
        carried = ThreadEvents(
            np.array(list(before), np.int64),
            np.full(len(before), since_ns, np.int64),
            np.array([IN if runs else BLOCKED for runs in before.values()], np.int64),
        )
        tid, time_ns, kind = (
            np.concatenate([getattr(part, name) for part in (carried, switches)]) for name in ("tid", "time_ns", "kind")
        )
        order = np.lexsort((time_ns, tid))
        tid, time_ns, kind = tid[order], np.clip(time_ns[order], since_ns, now_ns), kind[order]
        follows = np.append(tid[1:] == tid[:-1], False)[: len(tid)]
        end = np.where(follows, np.append(time_ns[1:], 0)[: len(tid)], now_ns)
        some = kind == IN
        return tid[some], time_ns[some], end[some]


def _clip(gaps: Iterable[Gap], since_ns: int, now_ns: int) -> list[Gap]:
    clipped: Sequence[Gap] = [(max(low, since_ns), min(high, now_ns)) for low, high in gaps]
    return merge_gaps(gap for gap in clipped if gap[0] < gap[1])
