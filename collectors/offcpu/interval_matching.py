"""Construction of off-CPU intervals from context switch records, and estimates for time that lacks such
records.

Switch records are missing if ring buffers were full, or while the recording of a thread that switches often
was paused. The off-CPU time in a gap is estimated from the thread's time around it. The running time of a
paused thread is read from /proc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pyprof.collectors.context_switch_protocol import BLOCKED, I64, IN, MIN_ON_NS, PREEMPTED, Gap, Mask, ThreadEvents
from pyprof.collectors.linux import procfs
from pyprof.lazy_dataclasses import dataclass

_MATCH_NS = 1_000_000  # the kernel takes a switch-out sample right before its record, with interrupts off
_CARRIED, _SAMPLE, _SWITCH, _OUT_OF_BAND = range(4)


@dataclass(slots=True)
class OpenInterval:
    """An off-CPU interval that has not ended yet.

    Attributes:
        since_ns: End of the interval's part that was already attributed to a stack.
        began_ns: Start of the whole interval.
        blocked: True if the thread waits for more than a processor.
        attributed: True if its stack is in an earlier batch.
        sure: False if no context switch of its thread is known yet, so that the thread may be running.
        looked_ns: Time of the last out-of-band sample in it, that is, of its thread's stack read from
            outside.
    """

    since_ns: int
    began_ns: int
    blocked: bool
    attributed: bool = False
    sure: bool = True
    looked_ns: int = 0


@dataclass(frozen=True, slots=True)
class Intervals:
    """Off-CPU intervals in the order of thread and time, as columns of shape (n,).

    Attributes:
        tid: Threads.
        start_ns: Start of the part to attribute.
        end_ns: End of the interval.
        began_ns: Start of the whole interval.
        blocked: True if the thread waits for more than a processor.
        carried: True if it continues from an earlier reading of the rings.
        open: True if it has not ended.
        sample: Index of its first sample at a context switch, -1 for none.
        out_of_band: Index of its first out-of-band sample (the sleeping thread's stack, read from outside),
            -1 for none.
    """

    tid: I64
    start_ns: I64
    end_ns: I64
    began_ns: I64
    blocked: Mask
    carried: Mask
    open: Mask
    sample: I64
    out_of_band: I64

    def __len__(self) -> int:
        return len(self.tid)


def match_intervals(
    opened: Mapping[int, OpenInterval],
    switches: ThreadEvents,
    samples: ThreadEvents,
    out_of_band: ThreadEvents,
    now_ns: int,
) -> tuple[Intervals, I64]:
    """Match each context switch off a processor with the same thread's next switch onto one. Return the
    off-CPU intervals up to now_ns, and the indices of out-of-band samples that lie in none of them.

    Args:
        opened: Intervals that had not ended at the last reading, by tid.
        switches: Switches of threads.
        samples: Samples at switches.
        out_of_band: Samples of sleeping threads that were read from outside.
        now_ns: End of the time.
    """
    mine = list(opened.items())
    carried = ThreadEvents(
        np.array([tid for tid, _ in mine], np.int64),
        np.array([each.since_ns for _, each in mine], np.int64),
        np.array([BLOCKED if each.blocked else PREEMPTED for _, each in mine], np.int64),
    )
    parts = (carried, samples, switches, out_of_band)
    tid, time_ns, kind = (np.concatenate([getattr(p, name) for p in parts]) for name in ("tid", "time_ns", "kind"))
    code = np.repeat(np.arange(4), [len(p.tid) for p in parts])
    lane = np.concatenate([np.arange(len(p.tid)) for p in parts])
    order = np.lexsort((time_ns, code != _CARRIED, tid))
    tid, time_ns, kind, code, lane = (column[order] for column in (tid, time_ns, kind, code, lane))
    unsure = np.zeros(len(tid), np.bool_)
    unsure[code == _CARRIED] = [not mine[at][1].sure for at in lane[code == _CARRIED].tolist()]
    at = _changes(tid, kind, code, unsure)
    out = (kind[at] == BLOCKED) | (kind[at] == PREEMPTED)
    closed = np.append(tid[at][1:] == tid[at][:-1], False)[: len(at)]
    end_ns = np.where(closed, np.append(time_ns[at][1:], 0)[: len(at)], now_ns)
    number = np.cumsum(out) - 1
    first = at[out]
    n = len(first)
    sample, out_of_band_lane = np.full(n, -1, np.int64), np.full(n, -1, np.int64)

    those = np.flatnonzero(code == _SAMPLE)[::-1]
    following = np.searchsorted(at, those)
    good = following < len(at)
    those, following = those[good], following[good]
    good = (tid[at[following]] == tid[those]) & out[following] & (code[at[following]] == _SWITCH)
    good &= time_ns[at[following]] - time_ns[those] < _MATCH_NS
    sample[number[following[good]]] = lane[those[good]]

    those = np.flatnonzero(code == _OUT_OF_BAND)[::-1]
    before = np.searchsorted(at, those) - 1
    good = before >= 0
    good[good] &= (tid[at[before[good]]] == tid[those[good]]) & out[before[good]]
    out_of_band_lane[number[before[good]]] = lane[those[good]]

    began = time_ns[first].copy()
    own = code[first] == _CARRIED
    began[own] = [mine[at][1].began_ns for at in lane[first][own].tolist()]
    start = np.minimum(time_ns[first], now_ns)
    found = Intervals(
        tid[first], start, np.maximum(end_ns[out], start), began, kind[first] == BLOCKED, own, ~closed[out],
        sample, out_of_band_lane,
    )  # fmt: skip
    return found, lane[those[~good]]


def _changes(tid: I64, kind: I64, code: I64, unsure: Mask) -> I64:
    """Return the indices of the records at which threads alternately leave and enter a processor. Repetitions
    are left out, because two perf events may report the same switch for a while.
    """
    at = np.flatnonzero((code == _CARRIED) | (code == _SWITCH))
    leaves = kind[at] != IN
    follows = np.append(tid[at][1:] == tid[at][:-1], False)[: len(at)]
    ran = unsure[at] & follows & np.append(leaves[1:], False)[: len(at)]
    at = at[~ran]
    out = (kind[at] == BLOCKED) | (kind[at] == PREEMPTED)
    again = np.append(False, (tid[at][1:] == tid[at][:-1]) & (out[1:] == out[:-1]))[: len(at)]
    found: I64 = at[~again]
    return found


_MIN_KNOWN = 0.05


class Gaps:
    """The time without context switch records, of all threads or of single threads, since the time up to
    which off-CPU time was attributed.

    Attributes:
        until_ns: Time up to which off-CPU time was attributed.
        unattributed_ns: Off-CPU nanoseconds without records, by tid, for threads whose records were paused.
        lost_ns: Nanoseconds before until_ns without records of any thread.
        resumed: Time at which paused records of a thread began again, by tid.
    """

    def __init__(self, now_ns: int) -> None:
        self.until_ns = now_ns
        self.unattributed_ns: dict[int, int] = {}
        self.lost_ns = 0
        self.resumed: dict[int, int] = {}

    def skip_time(
        self, tids: Iterable[int], now_ns: int, ran_ns: Mapping[int, int], ended_ns: Mapping[int, int]
    ) -> None:
        """Mark the time from until_ns to now_ns as time without switch records, for some threads.

        Args:
            tids: The threads.
            now_ns: End of the time.
            ran_ns: Running time in it, by tid.
            ended_ns: Time at which a thread ended, by tid.
        """
        for tid in tids:
            passed_ns = min(now_ns, ended_ns.get(tid, now_ns)) - self.until_ns
            self.unattributed_ns[tid] = self.unattributed_ns.get(tid, 0) + max(passed_ns - ran_ns.get(tid, 0), 0)

    def known_ns(self, now_ns: int, gaps: Sequence[Gap]) -> int:
        """Return the nanoseconds between until_ns and now_ns for which there are switch records, or 0 if they
        are too few for an estimate.
        """
        passed = now_ns - self.until_ns
        known = passed - sum(max(min(end, now_ns) - max(start, self.until_ns), 0) for start, end in gaps)
        return known if known > _MIN_KNOWN * passed else 0

    def add_unattributed(
        self, tid: I64, length_ns: I64, carries: Mask, displaced: Mask, now_ns: int, known_ns: int
    ) -> I64:
        """Return the lengths (n,) of off-CPU intervals in nanoseconds, each increased by a share of its
        thread's off-CPU time without switch records (owed time).

        Owed time is assigned only after a thread has had switch records for a while, because a short time is
        no basis for an estimate.

        Args:
            tid: Threads of the intervals.
            length_ns: Their lengths.
            carries: Intervals that can get owed time.
            displaced: Intervals in which a thread waited for a processor and that the profile does not show.
                A part of the owed time was spent in such waits.
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
    """Return the nanoseconds of each interval (n,) that lie in gaps of the switch records. Gaps must not overlap."""
    total = np.zeros(len(start), np.int64)
    for low, high in gaps:
        total += np.maximum(np.minimum(end, high) - np.maximum(start, low), 0)
    return total


class PausedThreads:
    def __init__(self) -> None:
        self._run_ns: dict[int, int] = {}
        self._started: dict[int, int] = {}

    def watch_threads(self, tids: Iterable[int], running: bool) -> None:
        """Start to read the running time of threads whose switch records are paused.

        Args:
            tids: The threads.
            running: True if their running time is known from samples, and need not be read.
        """
        for tid in tids:
            if not running:
                self._run_ns[tid] = _run_ns(tid)
            if (start := procfs.read_start_ticks(tid)) is not None:
                self._started[tid] = start

    def keep_only(self, tids: set[int]) -> None:
        """Forget all threads except these, because their switch records are no longer paused."""
        for kept in (self._run_ns, self._started):
            for tid in kept.keys() - tids:
                del kept[tid]

    def find_ended(self, tids: Iterable[int]) -> list[int]:
        """Return those of the threads that have ended, even if another thread has the tid now."""
        found = []
        for tid in tids:
            start = procfs.read_start_ticks(tid)
            if start is None or self._started.get(tid, start) != start:
                self._started.pop(tid, None)
                found.append(tid)
        return found

    def read_run_ns(self) -> dict[int, int]:
        """Return the running time of each paused thread since the last call in nanoseconds, by tid."""
        before, self._run_ns = self._run_ns, {tid: _run_ns(tid) for tid in self._run_ns}
        return {tid: max(self._run_ns[tid] - ns, 0) for tid, ns in before.items()}


def _run_ns(tid: int) -> int:
    try:
        with open(f"/proc/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
