"""The stack to which each off-CPU interval is attributed.

An off-CPU interval is the time between two context switches of a thread. An out-of-band sample is the stack
of a sleeping thread, read from outside without a stop.

The stack is that of the interval's own sample at the context switch, of an out-of-band sample, of an earlier
part of the interval, or none.

Switch records give the times. Samples at switches and out-of-band samples give the stacks. An interval
without a stack is attributed to stacks of intervals of the same thread with a similar length. That keeps the
time of each thread exact, and its shares of short and of long intervals. An interval that has not ended is
attributed in parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from pyprof.collectors.context_switch_protocol import ENDED, I64, Gap, Mask, ThreadEvents
from pyprof.collectors.offcpu.interval_matching import (
    Gaps,
    Intervals,
    OpenInterval,
    match_intervals,
    measure_overlap,
    merge_gaps,
)
from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.integer_array_operations import distinct

Pool = dict[tuple[int, bool, int], tuple[int, int]]
"""Off-CPU time for which no stack was found yet: (tid, blocked, log2 of the length) -> (nanoseconds, time
since when it is kept).
"""

_MAX_DELAY_NS = 1_000_000_000
_BUCKETS = 64


def defer_time(pool: Pool, tid: int, blocked: bool, ns: int, now_ns: int) -> None:
    """Add off-CPU time of a thread, for which no stack is known yet, to the pool of time that is distributed later.

    Args:
        pool: The pool, which is changed.
        tid: The thread.
        blocked: True if the thread waited for more than a processor.
        ns: Length of the off-CPU time.
        now_ns: Current time. The pool stores it as the begin of a new entry.
    """
    key = (tid, blocked, max(ns, 1).bit_length() - 1)
    before, since = pool.get(key, (0, now_ns))
    pool[key] = (before + ns, since)


@dataclass(frozen=True, slots=True)
class AttributedIntervals:
    """Off-CPU intervals as columns of shape (n,). Those without a stack get the stack of another interval.

    Attributes:
        tid: Threads.
        blocked: True if the thread waited for more than a processor.
        whole_ns: Length of the whole interval.
        length_ns: The part of it that is attributed now.
        attributed: True if it has a stack.
        pooled: True if it has no stack and should get that of another interval.
    """

    tid: I64
    blocked: Mask
    whole_ns: I64
    length_ns: I64
    attributed: Mask
    pooled: Mask


def distribute_time(
    rows: AttributedIntervals, pool: Pool, now_ns: int, ended: set[int] | None
) -> tuple[I64, list[tuple[int, bool, int]]]:
    """Distribute the time of off-CPU intervals without a stack to intervals that have one.

    Args:
        rows: The intervals.
        pool: Time that is kept for the next call. Time that is too old or belongs to ended threads is removed.
        now_ns: Current time.
        ended: Threads that have ended, or None for all.

    Returns:
        A tuple (time (n,) in nanoseconds that each attributed interval stands for, including its own; list of
            (tid, blocked, ns) for time that remains without a stack).
    """
    tid, length_ns, attributed = rows.tid, rows.length_ns, rows.attributed
    result = length_ns.copy()
    bucket = np.log2(np.maximum(rows.whole_ns, 1)).astype(np.int64)
    tids = distinct(np.concatenate([tid, np.array([key[0] for key in pool], np.int64)]))
    group = (np.searchsorted(tids, tid) * 2 + rows.blocked) * _BUCKETS + bucket
    waiting, place = np.unique(group[rows.pooled], return_inverse=True)
    amount = np.zeros(len(waiting), np.int64)
    np.add.at(amount, place, length_ns[rows.pooled])
    since = {int(key): now_ns for key in waiting}
    todo = dict(zip(waiting.tolist(), amount.tolist(), strict=True))
    for (thread, is_blocked, size), (ns, at) in pool.items():
        key = (int(np.searchsorted(tids, thread)) * 2 + is_blocked) * _BUCKETS + size
        todo[key] = todo.get(key, 0) + ns
        since[key] = at
    pool.clear()
    if not todo:
        return result, []
    targets = distinct(group[attributed & (length_ns > 0)])
    keys = np.array(sorted(todo), np.int64)
    nearest = _nearest(targets, keys)
    given = np.zeros(len(targets), np.int64)
    bare: dict[tuple[int, bool], int] = {}
    for key, to in zip(keys.tolist(), nearest.tolist(), strict=True):
        if to >= 0:
            given[to] += todo[key]
            continue
        rest, size = divmod(key, _BUCKETS)
        thread, is_blocked = int(tids[rest // 2]), bool(rest & 1)
        if ended is None or thread in ended or since[key] < now_ns - _MAX_DELAY_NS:
            bare[thread, is_blocked] = bare.get((thread, is_blocked), 0) + todo[key]
        else:
            pool[thread, is_blocked, size] = (todo[key], since[key])
    if len(lanes := np.flatnonzero(attributed & (length_ns > 0))):
        to = np.searchsorted(targets, group[lanes])
        own = np.bincount(to, length_ns[lanes], len(targets))
        result[lanes] += np.rint(length_ns[lanes] * (given / own)[to]).astype(np.int64)
    return result, [(thread, is_blocked, ns) for (thread, is_blocked), ns in bare.items()]


def _nearest(targets: I64, keys: I64) -> I64:
    """Return for each off-CPU interval without a stack the interval with a stack whose length is most
    similar.

    Args:
        targets: Sorted keys of intervals with a stack. A key stands for a thread, blocked or preempted, and a
            length class.
        keys: Keys of intervals without a stack.

    Returns:
        Indices in `targets` of the same thread and kind, -1 if there is none.
    """
    if not len(targets):
        return np.full(len(keys), -1, np.int64)
    above = np.minimum(np.searchsorted(targets, keys), len(targets) - 1)
    below = np.maximum(above - 1, 0)
    far = np.int64(2**62)
    distance = [
        np.where(targets[side] // _BUCKETS == keys // _BUCKETS, np.abs(targets[side] - keys), far)
        for side in (above, below)
    ]
    nearest = np.where(distance[0] <= distance[1], above, below)
    return np.where(np.minimum(*distance) < far, nearest, -1)


LaneIndices = Sequence[int] | I64


@dataclass(frozen=True, slots=True)
class DrainState:
    """Facts about off-CPU time that one reading of the ring buffers found, in addition to switch records and samples.

    Attributes:
        gaps: Spans of time in which records were lost.
        paused: Threads without records, because their events are off.
        ran_ns: Running time in nanoseconds of threads that are paused or were paused until the last reading,
            by tid.
        weak: Indices of samples at switches whose stacks have less information than out-of-band samples
            (stacks of sleeping threads, read from outside).
        late: Indices of out-of-band samples whose threads had already been woken.
        ends_window: True if no later reading belongs to the same window.
    """

    gaps: Sequence[Gap] = ()
    paused: frozenset[int] = frozenset()
    ran_ns: Mapping[int, int] = field(default_factory=dict)
    weak: LaneIndices = ()
    late: LaneIndices = ()
    ends_window: bool = False


@dataclass(frozen=True, slots=True)
class IntervalClasses:
    """Boolean masks of n off-CPU intervals, one for each way in which an interval gets its stack.

    Attributes:
        before: The interval's stack is known from an earlier part.
        by_sample: Its stack is that of the sample at the context switch.
        by_out_of_band: Its stack is that of an out-of-band sample, which was read from outside while the
            thread slept.
        pooled: It has no stack and gets that of another interval.
        blocked: Its thread waited for more than a processor.
        wanted: Its time is shown.
        unsure: Its thread may have run instead, because switch records are missing.
    """

    before: Mask
    by_sample: Mask
    by_out_of_band: Mask
    pooled: Mask
    blocked: Mask
    wanted: Mask
    unsure: Mask

    @property
    def own_stack(self) -> Mask:
        """Mask of off-CPU intervals whose stack is known, so that they need no stack of another interval."""
        return self.before | self.by_sample | self.by_out_of_band


def classify_intervals(
    found: Intervals, opened: Mapping[int, OpenInterval], drain: DrainState, preempted: bool, looked_at_ns: int
) -> IntervalClasses:
    """Decide where the stack of each off-CPU interval comes from.

    Args:
        found: The intervals.
        opened: Intervals that had not ended at the last reading, by tid.
        drain: Further information from this reading of the rings.
        preempted: True if intervals in which a thread only waited for a processor are attributed, too.
        looked_at_ns: Minimum length in ns of an interval in which a sleeping thread surely gets an
            out-of-band sample (its stack is read from outside).
    """
    whose = zip(found.tid.tolist(), found.carried.tolist(), strict=True)
    carried = [opened[tid] if is_carried else None for tid, is_carried in whose]
    before = np.array([each is not None and each.attributed for each in carried], np.bool_)
    doubted: Mask = np.array([each is not None and not each.sure for each in carried], np.bool_)
    unsure = doubted & found.open & (found.out_of_band < 0)
    # a thread that sleeps that long gets an out-of-band sample
    runnable = doubted & ~found.open & (found.out_of_band < 0) & (found.end_ns - found.start_ns > looked_at_ns)
    blocked = found.blocked & ~runnable
    wanted = blocked | preempted
    sampled = found.sample >= 0
    poor = np.zeros(len(sampled), np.bool_)
    poor[sampled] = np.isin(found.sample[sampled], drain.weak) & blocked[sampled]
    left_to_sample = (
        np.isin(found.out_of_band, drain.late) & ~found.open & np.isin(found.tid, found.tid[~before & sampled & ~poor])
    )
    by_out_of_band = ~before & (found.out_of_band >= 0) & (~sampled | poor) & ~left_to_sample
    better = np.isin(found.tid, found.tid[by_out_of_band]) | (found.open & (not drain.ends_window))
    by_sample = ~before & ~by_out_of_band & sampled & ~(poor & better)
    pooled = ~before & ~by_sample & ~by_out_of_band & wanted & ~unsure & (~found.open | drain.ends_window)
    return IntervalClasses(before, by_sample, by_out_of_band, pooled, blocked, wanted, unsure)


LEFT_OUT, BY_WEIGHT = -1, -2

_SILENT_NS = 1_000_000_000


@dataclass(slots=True)
class IntervalAttribution:
    """The off-CPU intervals that ended or continued since the last reading of the ring buffers, as the time
    that each stack stands for.

    Attributes:
        sample_ns: Time in ns that each sample at a context switch stands for, LEFT_OUT for none.
        sample_blocked: True if the thread of the sample was not preempted.
        sample_open: True if later parts of the interval refer to the sample.
        out_of_band_ns: Time in ns that each out-of-band sample (stack of a sleeping thread, read from
            outside) stands for. LEFT_OUT for none, BY_WEIGHT if its interval is unknown.
        out_of_band_open: True if later parts of the interval refer to the out-of-band sample.
        pairs: (index of a sample, index of an out-of-band sample) in the same interval.
        carried: (tid, start, ns) of parts of intervals whose stack is in an earlier batch.
        bare: (tid, blocked, ns) of time without a stack.
    """

    sample_ns: I64
    sample_blocked: Mask
    sample_open: Mask
    out_of_band_ns: I64
    out_of_band_open: Mask
    pairs: list[tuple[int, int]] = field(default_factory=list)
    carried: list[tuple[int, int, int]] = field(default_factory=list)
    bare: list[tuple[int, bool, int]] = field(default_factory=list)


_NOTHING_ELSE = DrainState()


class OffCpuIntervals:
    """The off-CPU intervals of all threads of a recording, from one reading of the switch records to the next.

    Args:
        preempted: True if intervals in which a thread only waited for a processor are attributed, too.
        now_ns: Current time, at which the attribution starts; earlier time is not attributed.
        looked_at_ns: Minimum length in ns of an interval in which a sleeping thread surely gets an
            out-of-band sample (its stack is read from outside). Shorter intervals may have none.
    """

    def __init__(self, preempted: bool, now_ns: int, looked_at_ns: int) -> None:
        self._looked_at_ns = looked_at_ns
        self._preempted = preempted
        self._open: dict[int, OpenInterval] = {}
        self._heard: set[int] = set()
        self._pool: Pool = {}
        self._began_ns = now_ns
        self._gaps = Gaps(now_ns)
        self._off: dict[int, float] = {}
        self._shown: dict[int, float] = {}
        self._met: dict[int, int] = {}
        self._left: list[tuple[int, int, int]] = []

    def start_at(self, at_ns: int) -> None:
        """Start the attribution of off-CPU time at a time. Earlier time is left out, even if records cover it."""
        self._began_ns = self._gaps.until_ns = at_ns

    def add_threads(self, since_ns: Mapping[int, int]) -> None:
        """Add threads whose switch records begin at these times, by tid. Threads that were already passed to
        the last call are ignored, because they may have ended since.
        """
        for tid, since in since_ns.items() - self._met.items():
            at = max(since, self._began_ns)
            if tid not in self._open and tid not in self._heard:
                self._open[tid] = OpenInterval(at, at, True, sure=False)
        self._met = dict(since_ns)

    def resume_threads(self, tids: Iterable[int], at_ns: int) -> None:
        """Continue with threads whose switch records were paused and begin again at at_ns. It is unknown
        whether they run at that time.
        """
        tids = [tid for tid in tids if tid in self._open or tid in self._heard]
        for tid in tids:
            self._open[tid] = OpenInterval(at_ns, at_ns, True, sure=False)
            self._gaps.unattributed_ns.setdefault(tid, 0)
            self._gaps.resumed[tid] = at_ns

    @property
    def paused_threads(self) -> list[int]:
        """Threads whose switch records are or were paused. They may have ended without a record."""
        return list(self._gaps.unattributed_ns)

    def find_silent(self, now_ns: int) -> list[int]:
        """Return the tids of threads that may have ended, because neither a switch record nor an out-of-band
        sample (read while they slept) has arrived for a second.
        """
        return [tid for tid, each in self._open.items() if max(each.looked_ns, each.began_ns) < now_ns - _SILENT_NS]

    def forget_thread(self, tid: int) -> None:
        """Forget a thread that has ended. The next call of attribute() accounts the rest of its off-CPU time."""
        self._open.pop(tid, None)
        self._heard.discard(tid)
        owed = round(self._gaps.unattributed_ns.pop(tid, 0) * self._shown.pop(tid, 1))
        if owed and tid in self._off:
            self._left.append((tid, self._gaps.until_ns - owed, owed))
        self._off.pop(tid, None)
        self._gaps.resumed.pop(tid, None)

    def attribute(
        self,
        switches: ThreadEvents,
        samples: ThreadEvents,
        out_of_band: ThreadEvents,
        now_ns: int,
        drain: DrainState = _NOTHING_ELSE,
    ) -> IntervalAttribution:
        """Attribute the off-CPU time up to now_ns to stacks.

        Args:
            switches: All switch records of that time, except for gaps and paused threads.
            samples: Samples at context switches, as (tid, time).
            out_of_band: Samples of sleeping threads that were read from outside, as (tid, time).
            now_ns: End of the time.
            drain: Further facts from the reading of the ring buffers.
        """
        gaps = merge_gaps(drain.gaps)
        known_ns = self._gaps.known_ns(now_ns, gaps)
        if not known_ns:
            self._gaps.lost_ns += now_ns - self._gaps.until_ns
        without = drain.paused if known_ns else drain.paused | self._open.keys() | self._heard
        waiting = self._take_out(without)
        gone = switches.kind == ENDED
        ended_ns = dict(zip(switches.tid[gone].tolist(), switches.time_ns[gone].tolist(), strict=True))
        self._gaps.skip_time({*drain.paused, *self._gaps.unattributed_ns}, now_ns, drain.ran_ns, ended_ns)
        drain = replace(drain, gaps=gaps, paused=without)
        result = self._attribute(switches.remove_threads(without), samples, out_of_band, now_ns, drain)
        if drain.ends_window:
            result.carried += self._close_unattributed(now_ns, 0 if known_ns else self._gaps.lost_ns)
        result.carried, self._left = self._left + result.carried, []
        for tid in without:
            if tid in waiting or tid in self._heard:
                self._open[tid] = OpenInterval(now_ns, now_ns, True, sure=False)
        self._mark_unsure_after(gaps, now_ns)
        self._gaps.until_ns = now_ns
        if known_ns or drain.ends_window:
            self._gaps.lost_ns = 0
        self._heard.update(distinct(switches.tid).tolist())
        for tid in ended_ns:
            self.forget_thread(tid)
        return result

    def _take_out(self, tids: Iterable[int]) -> set[int]:
        """Remove the open off-CPU intervals of threads whose switches are no longer recorded. Return the tids
        of threads that had an open interval.
        """
        waiting = {tid: self._open.pop(tid) for tid in tids if tid in self._open}
        for tid, each in waiting.items():
            self._set_aside(tid, each, self._gaps.until_ns)
        return set(waiting)

    def _set_aside(self, tid: int, each: OpenInterval, until_ns: int) -> None:
        """Add the time of an open off-CPU interval without a stack to the pool of time that is distributed later."""
        passed = until_ns - each.since_ns
        if each.sure and not each.attributed and passed > 0 and (each.blocked or self._preempted):
            defer_time(self._pool, tid, each.blocked, passed, until_ns)

    def _close_unattributed(self, now_ns: int, lost_ns: int) -> list[tuple[int, int, int]]:
        """Return (tid, start, nanoseconds) of off-CPU time that no later call of this window can attribute to a stack.

        Args:
            now_ns: End of the window.
            lost_ns: Time without any records.
        """
        left = {tid: round(lost_ns * share) for tid, share in self._off.items()}
        left |= {tid: round(ns * self._shown.get(tid, 1)) for tid, ns in self._gaps.unattributed_ns.items()}
        self._gaps.unattributed_ns.clear()
        return [(tid, now_ns - ns, ns) for tid, ns in left.items() if ns and tid in self._off]

    def _mark_unsure_after(self, gaps: Collection[Gap], now_ns: int) -> None:
        """Mark open off-CPU intervals that began before a gap in the records as unsure. A thread that slept
        before a gap may have run in it.
        """
        if not gaps:
            return
        start, end = min(low for low, _ in gaps), min(max(high for _, high in gaps), now_ns)
        for tid, each in self._open.items():
            if each.began_ns < end:
                self._set_aside(tid, each, start)
                each.since_ns = max(each.since_ns, end)
                each.sure = each.attributed = False

    def _attribute(
        self, switches: ThreadEvents, samples: ThreadEvents, out_of_band: ThreadEvents, now_ns: int, drain: DrainState
    ) -> IntervalAttribution:
        self._note_out_of_band(out_of_band, drain.paused)
        found, outside = match_intervals(self._open, switches, samples, out_of_band, now_ns)
        found = replace(
            found,
            start_ns=np.maximum(found.start_ns, self._began_ns),
            end_ns=np.maximum(found.end_ns, self._began_ns),
        )
        classes = classify_intervals(found, self._open, drain, self._preempted, self._looked_at_ns)
        seen = found.end_ns - found.start_ns - measure_overlap(found.start_ns, found.end_ns, drain.gaps)
        length = self._lengths(found, seen, classes, now_ns, drain)
        rows = AttributedIntervals(
            found.tid, classes.blocked, found.end_ns - found.began_ns, length,
            classes.by_sample | classes.by_out_of_band, classes.pooled,
        )  # fmt: skip
        ended = None if drain.ends_window else set(switches.tid[switches.kind == ENDED].tolist())
        share, bare = distribute_time(rows, self._pool, now_ns, ended)
        result = _emitted(
            found, classes, np.where(classes.wanted, share, LEFT_OUT), len(samples.tid), len(out_of_band.tid)
        )
        result.bare = bare
        result.out_of_band_ns[outside] = BY_WEIGHT
        result.out_of_band_ns[np.isin(out_of_band.tid, list(drain.paused))] = LEFT_OUT
        some = np.flatnonzero(classes.before & classes.wanted & (length > 0))
        columns = (found.tid[some], found.start_ns[some], length[some])
        result.carried = list(zip(*(column.tolist() for column in columns), strict=True))
        self._carry_open_intervals(found, classes, now_ns, drain.ends_window)
        self._remember_shares(found.tid, length, classes.wanted, now_ns)
        self._remember_shown(found.tid, seen, classes.wanted)
        return result

    def _note_out_of_band(self, out_of_band: ThreadEvents, paused: frozenset[int]) -> None:
        """Open off-CPU intervals for threads that out-of-band samples (read from outside) found asleep, even
        if no switch of them is known.
        """
        for tid, at in dict(zip(out_of_band.tid.tolist(), out_of_band.time_ns.tolist(), strict=True)).items():
            if tid in self._open:
                self._open[tid].looked_ns = at
            elif tid not in self._heard and tid not in paused:
                self._open[tid] = OpenInterval(at, at, True, looked_ns=at)

    def _lengths(self, found: Intervals, seen_ns: I64, classes: IntervalClasses, now_ns: int, drain: DrainState) -> I64:
        """Return the time in nanoseconds (n,) that each off-CPU interval stands for. It includes time of the
        thread that has no switch records.
        """
        carries = classes.wanted & (classes.own_stack | classes.pooled)
        known_ns = self._gaps.known_ns(now_ns, drain.gaps)
        return self._gaps.add_unattributed(found.tid, seen_ns, carries, ~classes.wanted, now_ns, known_ns)

    def _carry_open_intervals(self, found: Intervals, classes: IntervalClasses, now_ns: int, ends_window: bool) -> None:
        """Store the off-CPU intervals that have not ended, so that the next call continues them. At the end
        of a window they continue from that time, because the part before it is accounted.
        """
        carried = {}
        rows = np.flatnonzero(found.open)
        columns = (found.tid, found.start_ns, found.began_ns, found.blocked, classes.own_stack, classes.unsure)
        for tid, start, began, blocked, known, doubt in zip(*(c[rows].tolist() for c in columns), strict=True):
            before = self._open.get(tid)
            looked = before.looked_ns if before is not None else 0
            carried[tid] = OpenInterval(
                now_ns if known or ends_window else start, began, blocked, known, not doubt, looked
            )
        self._open = carried

    def _remember_shares(self, tid: I64, length_ns: I64, wanted: Mask, now_ns: int) -> None:
        """Store the share of the elapsed time that each thread spent in off-CPU intervals which the profile shows."""
        tids, place = np.unique(tid[wanted], return_inverse=True)
        off = np.bincount(place, length_ns[wanted], len(tids)) / max(now_ns - self._gaps.until_ns, 1)
        self._off.update(zip(tids.tolist(), np.minimum(off, 1).tolist(), strict=True))

    def _remember_shown(self, tid: I64, seen_ns: I64, wanted: Mask) -> None:
        """Store the share of each thread's off-CPU time that the profile shows."""
        tids, place = np.unique(tid, return_inverse=True)
        off, shown = (np.bincount(place, each, len(tids)) for each in (seen_ns, np.where(wanted, seen_ns, 0)))
        some = off > 0
        self._shown.update(zip(tids[some].tolist(), (shown[some] / off[some]).tolist(), strict=True))


def _emitted(
    found: Intervals, classes: IntervalClasses, share: I64, samples: int, out_of_band: int
) -> IntervalAttribution:
    """Return the time that each sample stands for, from the off-CPU intervals of one reading of the ring
    buffers.

    Args:
        found: The intervals.
        classes: The sources of their stacks.
        share: Time in ns (n,) that each interval's stack stands for.
        samples: Number of samples at context switches.
        out_of_band: Number of samples that were read from outside.
    """
    result = IntervalAttribution(
        sample_ns=np.full(samples, LEFT_OUT, np.int64),
        sample_blocked=np.zeros(samples, np.bool_),
        sample_open=np.zeros(samples, np.bool_),
        out_of_band_ns=np.full(out_of_band, LEFT_OUT, np.int64),
        out_of_band_open=np.zeros(out_of_band, np.bool_),
    )
    lanes = found.sample[classes.by_sample]
    result.sample_ns[lanes], result.sample_open[lanes] = share[classes.by_sample], found.open[classes.by_sample]
    result.sample_blocked[lanes] = classes.blocked[classes.by_sample]
    lanes = found.out_of_band[classes.by_out_of_band]
    result.out_of_band_ns[lanes], result.out_of_band_open[lanes] = (
        share[classes.by_out_of_band],
        found.open[classes.by_out_of_band],
    )
    both = np.flatnonzero((found.sample >= 0) & (found.out_of_band >= 0))
    result.pairs = list(zip(found.sample[both].tolist(), found.out_of_band[both].tolist(), strict=True))
    return result
