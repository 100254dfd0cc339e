"""Stacks for off-CPU intervals that have none: those of intervals of the same thread with a similar length."""

from __future__ import annotations

import numpy as np

from pyprof.collectors.switch_events import I64, Mask
from pyprof.model.columns import distinct
from pyprof.records import dataclass

Pool = dict[tuple[int, bool, int], tuple[int, int]]
"""Off-CPU time for which no stack was found yet: (tid, blocked, bucket of length) -> (nanoseconds, start of the
time).
"""

_PATIENCE_NS = 1_000_000_000
_BUCKETS = 64


def defer_time(pool: Pool, tid: int, blocked: bool, ns: int, now_ns: int) -> None:
    """Add off-CPU time to the pool of time for which a stack must be found later."""
    key = (tid, blocked, max(ns, 1).bit_length() - 1)
    before, since = pool.get(key, (0, now_ns))
    pool[key] = (before + ns, since)


@dataclass(frozen=True, slots=True)
class AttributedIntervals:
    """Off-CPU intervals as columns of shape (n,); some of them get the stack of another interval.

    Attributes:
        tid: Threads.
        blocked: True if the thread waited for more than a processor.
        whole_ns: Length of the whole interval.
        length_ns: The part of it that is attributed now.
        attributed: True if it has a stack.
        pooled: True if it should get a stack of another interval.
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
        The time (n,) that each attributed interval stands for, including its own; and (tid, blocked, ns) of time that
            remains without a stack.
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
        if ended is None or thread in ended or since[key] < now_ns - _PATIENCE_NS:
            bare[thread, is_blocked] = bare.get((thread, is_blocked), 0) + todo[key]
        else:
            pool[thread, is_blocked, size] = (todo[key], since[key])
    if len(lanes := np.flatnonzero(attributed & (length_ns > 0))):
        to = np.searchsorted(targets, group[lanes])
        own = np.bincount(to, length_ns[lanes], len(targets))
        result[lanes] += np.rint(length_ns[lanes] * (given / own)[to]).astype(np.int64)
    return result, [(thread, is_blocked, ns) for (thread, is_blocked), ns in bare.items()]


def _nearest(targets: I64, keys: I64) -> I64:
    """Return for each key the index of the target of the same thread and kind with the nearest length bucket, -1 for
    none.
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
