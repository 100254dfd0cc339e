"""Construction of off-CPU intervals from switch records, and their samples and out-of-band samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pyprof.collectors.switch_events import BLOCKED, I64, IN, PREEMPTED, Mask, ThreadEvents
from pyprof.records import dataclass

_MATCH_NS = 1_000_000  # the kernel takes a switch-out sample right before its record, with interrupts off
_CARRIED, _SAMPLE, _SWITCH, _OUT_OF_BAND = range(4)


@dataclass(slots=True)
class OpenInterval:
    """An off-CPU interval that has not ended yet.

    Attributes:
        since_ns: End of the interval's attributed part.
        began_ns: Start of the whole interval.
        blocked: True if the thread waits for more than a processor.
        attributed: True if its stack is known to later parts.
        sure: False if no switch of its thread is known yet, so that it may run.
        looked_ns: Time of the last out-of-band sample in it.
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
        sample: Index of its first sample, -1 for none.
        out_of_band: Index of its first out-of-band sample, -1 for none.
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
    """Return the off-CPU intervals until now_ns, and the out-of-band samples that are in none of them.

    Args:
        opened: Intervals that continued from before, by tid.
        switches: Switches of threads.
        samples: Samples at switches.
        out_of_band: Out-of-band samples.
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
    """Return the indices of switch records at which threads alternately leave and enter a processor.

    Two events may report the same switch for a while.
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
