"""The stretches in which threads are off their processor: when each began and ended, and whose stack stands for it.

Switch records say when, switch-out samples and looks from outside say where. A stretch without a stack of its own is
counted for those of the same thread that are about as long: that keeps the time of each thread exact, and its shares of
short and of long stretches. A stretch that goes on is told in parts, each as soon as it has passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pyprof.collectors.offcpu.attribution import Pool, Rows, set_aside, shares
from pyprof.collectors.offcpu.gaps import I64, Gap, Gaps, Mask, merged, overlap

IN, BLOCKED, PREEMPTED, ENDED = 0, 1, 2, 3
"""Kinds of switch records: onto a processor, off it to wait, off it for another thread, the end of the thread."""

LEFT_OUT, BY_WEIGHT = -1, -2

Lanes = Sequence[int] | I64
_MATCH_NS = 1_000_000  # a switch-out sample is taken right before its record, with interrupts off
_SILENT_NS = 1_000_000_000
_CARRIED, _SAMPLE, _SWITCH, _LOOK = range(4)


@dataclass(frozen=True, slots=True)
class Points:
    """Things seen of threads, columns of shape (n,). kind: of switch records, else zeros."""

    tid: I64
    time_ns: I64
    kind: I64

    @classmethod
    def of(cls, tid: npt.NDArray[np.integer], time_ns: I64, kind: I64 | None = None) -> Points:
        return cls(tid.astype(np.int64), time_ns, np.zeros(len(tid), np.int64) if kind is None else kind)

    def at(self, those: Mask) -> Points:
        return Points(self.tid[those], self.time_ns[those], self.kind[those])

    def without(self, tids: Collection[int]) -> Points:
        if not tids:
            return self
        return self.at(~np.isin(self.tid, list(tids)))


@dataclass(frozen=True, slots=True)
class Drain:
    """What is known of the time that is told, beside what was seen in it. gaps: of which records were lost. paused:
    threads of which there are none. ran_ns: how long threads that are paused, or were until the last time, have run
    meanwhile. weak: samples that look worse than what is seen from outside. late: looks at threads that were about to
    run. last: this is the end.
    """

    gaps: Sequence[Gap] = ()
    paused: frozenset[int] = frozenset()
    ran_ns: Mapping[int, int] = field(default_factory=dict)
    weak: Lanes = ()
    late: Lanes = ()
    last: bool = False


@dataclass(slots=True)
class Told:
    """What one drain tells. sample_ns, look_ns: the time that each stands for, LEFT_OUT for none, BY_WEIGHT where
    nothing is known of its stretch. sample_blocked: not preempted. sample_open, look_open: later parts of their stretch
    refer to it. pairs: (sample, look) of one stretch.
    carried: (tid, since, ns) of parts whose stack was told before. bare: (tid, blocked, ns) of time whose stacks nobody
    saw.
    """

    sample_ns: I64
    sample_blocked: Mask
    sample_open: Mask
    look_ns: I64
    look_open: Mask
    pairs: list[tuple[int, int]] = field(default_factory=list)
    carried: list[tuple[int, int, int]] = field(default_factory=list)
    bare: list[tuple[int, bool, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """since_ns: told up to there. began_ns: of the whole stretch. told: whoever follows knows its stack. sure:
    False of a thread of which nothing was heard yet: it may run. looked_ns: of the last look in it.
    """

    since_ns: int
    began_ns: int
    blocked: bool
    told: bool = False
    sure: bool = True
    looked_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Columns:
    """Intervals by thread and time. began_ns: of the whole, also of one that goes on from an earlier drain (carried).
    sample, look: the first in each, -1 for none.
    """

    tid: I64
    start_ns: I64
    end_ns: I64
    began_ns: I64
    blocked: Mask
    carried: Mask
    open: Mask
    sample: I64
    look: I64


_NOTHING_ELSE = Drain()


class OffCpuIntervals:
    """preempted: time spent waiting for a processor is told, too. now_ns: when it began. looked_at_ns: whoever sleeps
    so long is looked at.
    """

    def __init__(self, preempted: bool, now_ns: int, looked_at_ns: int) -> None:
        self._looked_at_ns = looked_at_ns
        self._preempted = preempted
        self._open: dict[int, _Open] = {}
        self._heard: set[int] = set()
        self._pool: Pool = {}
        self._gaps = Gaps(now_ns)
        self._off: dict[int, float] = {}
        self._met: dict[int, int] = {}
        self._left: list[tuple[int, int, int]] = []

    def meet(self, since_ns: Mapping[int, int]) -> None:
        """Threads whose records come from these times on. What was among them the last time is not new: it may have
        ended since.
        """
        for tid, at in since_ns.items() - self._met.items():
            if tid not in self._open and tid not in self._heard:
                self._open[tid] = _Open(at, at, True, sure=False)
        self._met = dict(since_ns)

    def resume(self, tids: Iterable[int], at_ns: int) -> None:
        """Threads whose records come again: what they do is not known."""
        tids = [tid for tid in tids if tid in self._open or tid in self._heard]
        for tid in tids:
            self._open[tid] = _Open(at_ns, at_ns, True, sure=False)
            self._gaps.owed.setdefault(tid, 0)
            self._gaps.resumed[tid] = at_ns

    @property
    def owed(self) -> list[int]:
        """Threads that are, or were, left alone: their end may have been without a record."""
        return list(self._gaps.owed)

    def silent(self, now_ns: int) -> list[int]:
        """Threads that nobody has seen asleep for a while, nor heard of: they may be gone."""
        return [tid for tid, each in self._open.items() if max(each.looked_ns, each.began_ns) < now_ns - _SILENT_NS]

    def forget(self, tid: int) -> None:
        """It has ended. What it is owed is told the next time."""
        self._open.pop(tid, None)
        self._heard.discard(tid)
        owed = self._gaps.owed.pop(tid, 0)
        if owed and tid in self._off:
            self._left.append((tid, self._gaps.until_ns - owed, owed))
        self._off.pop(tid, None)
        self._gaps.resumed.pop(tid, None)

    def tell(
        self,
        switches: Points,
        samples: Points,
        looks: Points,
        now_ns: int,
        drain: Drain = _NOTHING_ELSE,
    ) -> Told:
        """The time until now_ns, of which all records are there, but for the gaps and for threads that were paused."""
        gaps, paused, last = merged(drain.gaps), drain.paused, drain.last
        known_ns = self._gaps.known_ns(now_ns, gaps)
        if not known_ns:
            self._gaps.lost_ns += now_ns - self._gaps.until_ns
        without = paused if known_ns else paused | self._open.keys() | self._heard
        waiting = {tid: self._open.pop(tid) for tid in without if tid in self._open}
        for tid, each in waiting.items():
            self._set_aside(tid, each, self._gaps.until_ns)
        gone = switches.kind == ENDED
        ended_ns = dict(zip(switches.tid[gone].tolist(), switches.time_ns[gone].tolist(), strict=True))
        self._gaps.skip({*paused, *self._gaps.owed}, now_ns, drain.ran_ns, ended_ns)
        told = self._tell(switches.without(without), samples, looks, now_ns, replace(drain, gaps=gaps, paused=without))
        if last:
            lost = 0 if known_ns else self._gaps.lost_ns
            left = {tid: round(lost * share) for tid, share in self._off.items()} | self._gaps.owed
            told.carried += [(tid, now_ns - ns, ns) for tid, ns in left.items() if ns and tid in self._off]
            self._gaps.owed.clear()
        told.carried, self._left = self._left + told.carried, []
        for tid in without:
            if tid in waiting or tid in self._heard:
                self._open[tid] = _Open(now_ns, now_ns, True, sure=False)
        if gaps:  # whoever slept before a gap may sleep elsewhere after it
            start, end = min(low for low, _ in gaps), min(max(high for _, high in gaps), now_ns)
            for tid, each in self._open.items():
                if each.began_ns < end:
                    self._set_aside(tid, each, start)
                    each.since_ns = max(each.since_ns, end)
                    each.sure = each.told = False
        self._gaps.until_ns = now_ns
        if known_ns:
            self._gaps.lost_ns = 0
        self._heard.update(np.unique(switches.tid).tolist())
        for tid in ended_ns:
            self.forget(tid)
        return told

    def _tell(
        self,
        switches: Points,
        samples: Points,
        looks: Points,
        now_ns: int,
        drain: Drain,
    ) -> Told:
        paused, last = drain.paused, drain.last
        for tid, at in dict(zip(looks.tid.tolist(), looks.time_ns.tolist(), strict=True)).items():
            if tid in self._open:
                self._open[tid].looked_ns = at
            elif tid not in self._heard and tid not in paused:
                self._open[tid] = _Open(at, at, True, looked_ns=at)
        n, m = len(samples.tid), len(looks.tid)
        told = Told(
            sample_ns=np.full(n, LEFT_OUT, np.int64),
            sample_blocked=np.zeros(n, np.bool_),
            sample_open=np.zeros(n, np.bool_),
            look_ns=np.full(m, LEFT_OUT, np.int64),
            look_open=np.zeros(m, np.bool_),
        )
        found = self._stretches(switches, samples, looks, now_ns, told)
        told.look_ns[np.isin(looks.tid, list(paused))] = LEFT_OUT
        whose = list(zip(found.tid.tolist(), found.carried.tolist(), strict=True))
        known = [self._open[tid] if carried else None for tid, carried in whose]
        before = np.array([each is not None and each.told for each in known], np.bool_)
        doubted: Mask = np.array([each is not None and not each.sure for each in known], np.bool_)
        unsure = doubted & found.open & (found.look < 0)
        # whoever sleeps is looked at
        runnable = doubted & ~found.open & (found.look < 0) & (found.end_ns - found.start_ns > self._looked_at_ns)
        blocked = found.blocked & ~runnable
        wanted = blocked | self._preempted
        sampled = found.sample >= 0
        poor = np.zeros(len(sampled), np.bool_)
        poor[sampled] = np.isin(found.sample[sampled], drain.weak) & blocked[sampled]
        told_later = (
            np.isin(found.look, drain.late) & ~found.open & np.isin(found.tid, found.tid[~before & sampled & ~poor])
        )
        by_look = ~before & (found.look >= 0) & (~sampled | poor) & ~told_later
        better = np.isin(found.tid, found.tid[by_look]) | (found.open & (not last))
        by_sample = ~before & ~by_look & sampled & ~(poor & better)
        length = found.end_ns - found.start_ns - overlap(found.start_ns, found.end_ns, drain.gaps)
        pooled = ~before & ~by_sample & ~by_look & wanted & ~unsure & (~found.open | last)
        carries = wanted & (before | by_sample | by_look | pooled)
        known_ns = self._gaps.known_ns(now_ns, drain.gaps)
        length = self._gaps.counted(found.tid, length, carries, now_ns, known_ns)
        whole = found.end_ns - found.began_ns
        rows = Rows(found.tid, blocked, whole, length, by_sample | by_look, pooled)
        ended = None if last else set(switches.tid[switches.kind == ENDED].tolist())
        share, told.bare = shares(rows, self._pool, now_ns, ended)
        share = np.where(wanted, share, LEFT_OUT)
        lanes = found.sample[by_sample]
        told.sample_ns[lanes], told.sample_open[lanes] = share[by_sample], found.open[by_sample]
        told.sample_blocked[lanes] = blocked[by_sample]
        lanes = found.look[by_look]
        told.look_ns[lanes], told.look_open[lanes] = share[by_look], found.open[by_look]
        both = np.flatnonzero((found.sample >= 0) & (found.look >= 0))
        told.pairs = list(zip(found.sample[both].tolist(), found.look[both].tolist(), strict=True))
        some = np.flatnonzero(before & wanted & (length > 0))
        columns = (found.tid[some], found.start_ns[some], length[some])
        told.carried = list(zip(*(column.tolist() for column in columns), strict=True))
        self._go_on(found, before | by_sample | by_look, unsure, now_ns)
        tids, place = np.unique(found.tid[wanted], return_inverse=True)
        off = np.bincount(place, length[wanted], len(tids)) / max(now_ns - self._gaps.until_ns, 1)
        self._off.update(zip(tids.tolist(), np.minimum(off, 1).tolist(), strict=True))
        return told

    def _set_aside(self, tid: int, each: _Open, until_ns: int) -> None:
        """What passed of a stretch whose stack nobody has seen yet, and which is not followed any further."""
        passed = until_ns - each.since_ns
        if each.sure and not each.told and passed > 0 and (each.blocked or self._preempted):
            set_aside(self._pool, tid, each.blocked, passed, until_ns)

    def _stretches(self, switches: Points, samples: Points, looks: Points, now_ns: int, told: Told) -> _Columns:
        mine = list(self._open.items())
        carried = Points(
            np.array([tid for tid, _ in mine], np.int64),
            np.array([each.since_ns for _, each in mine], np.int64),
            np.array([BLOCKED if each.blocked else PREEMPTED for _, each in mine], np.int64),
        )
        parts = (carried, samples, switches, looks)
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
        sample, look = np.full(n, -1, np.int64), np.full(n, -1, np.int64)

        those = np.flatnonzero(code == _SAMPLE)[::-1]
        following = np.searchsorted(at, those)
        good = following < len(at)
        those, following = those[good], following[good]
        good = (tid[at[following]] == tid[those]) & out[following] & (code[at[following]] == _SWITCH)
        good &= time_ns[at[following]] - time_ns[those] < _MATCH_NS
        sample[number[following[good]]] = lane[those[good]]

        those = np.flatnonzero(code == _LOOK)[::-1]
        before = np.searchsorted(at, those) - 1
        good = before >= 0
        good[good] &= (tid[at[before[good]]] == tid[those[good]]) & out[before[good]]
        told.look_ns[lane[those[~good]]] = BY_WEIGHT
        look[number[before[good]]] = lane[those[good]]

        began = time_ns[first].copy()
        own = code[first] == _CARRIED
        began[own] = [mine[at][1].began_ns for at in lane[first][own].tolist()]
        start = np.minimum(time_ns[first], now_ns)
        return _Columns(
            tid[first], start, np.maximum(end_ns[out], start), began, kind[first] == BLOCKED, own, ~closed[out],
            sample, look,
        )  # fmt: skip

    def _go_on(self, found: _Columns, told: Mask, unsure: Mask, now_ns: int) -> None:
        carried = {}
        rows = np.flatnonzero(found.open)
        columns = (found.tid, found.start_ns, found.began_ns, found.blocked, told, unsure)
        for tid, start, began, blocked, known, doubt in zip(*(c[rows].tolist() for c in columns), strict=True):
            before = self._open.get(tid)
            looked = before.looked_ns if before is not None else 0
            carried[tid] = _Open(now_ns if known else start, began, blocked, known, not doubt, looked)
        self._open = carried


def _changes(tid: I64, kind: I64, code: I64, unsure: Mask) -> I64:
    """Where threads go off their processor and come back, in turn. Two events for a while tell the same thing twice."""
    at = np.flatnonzero((code == _CARRIED) | (code == _SWITCH))
    leaves = kind[at] != IN
    follows = np.append(tid[at][1:] == tid[at][:-1], False)[: len(at)]
    ran = unsure[at] & follows & np.append(leaves[1:], False)[: len(at)]
    at = at[~ran]
    out = (kind[at] == BLOCKED) | (kind[at] == PREEMPTED)
    again = np.append(False, (tid[at][1:] == tid[at][:-1]) & (out[1:] == out[:-1]))[: len(at)]
    found: I64 = at[~again]
    return found
