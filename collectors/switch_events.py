"""Context switches as a collector reports them: threads leave their processors and come back.

offcpu/ makes off-CPU time of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch
from pyprof.records import dataclass

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

IN, BLOCKED, PREEMPTED, ENDED = 0, 1, 2, 3
"""Kinds of switches: onto a processor, off it to wait, off it for another thread, the end of the thread."""

Gap = tuple[int, int]
"""(from, to) in nanoseconds: time of which there are no records."""

LEAST_ON_NS = 50_000_000
"""For so long at least a thread is seen before it is left alone again."""


def covered_ns(gaps: Iterable[Gap]) -> int:
    """How much time lies in at least one of them."""
    total, reached = 0, 0
    for begin, end in sorted(gaps):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


@dataclass(frozen=True, slots=True)
class Points:
    """Things seen of threads, columns of shape (n,). kind: of switches, else zeros."""

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
class Happened:
    """All until a time. running: samples of threads on processors. left: those taken as threads left them, as if all
    were of 64-bit code; narrow: which are not. switches: of processes of the recording, and ends of any thread.
    since_ns: tid -> from when on its switches are known, of threads that were there already. gaps: of which records
    were lost. paused: threads of which there are no records.
    """

    running: list[SampleBatch]
    left: SampleBatch
    narrow: Mask
    switches: Points
    since_ns: Mapping[int, int]
    gaps: list[Gap]
    paused: frozenset[int]


class SwitchSource(Protocol):
    """A collector that reports context switches. source_ids: of its batches. flush_s: how long it may be left alone.
    alive: the processes that have not ended. paused: threads that switch so often that they are left alone for a while.
    """

    @property
    def source_ids(self) -> frozenset[int]: ...

    @property
    def flush_s(self) -> float: ...

    @property
    def alive(self) -> list[int]: ...

    @property
    def paused(self) -> frozenset[int]: ...

    def take(self, now_ns: int) -> Happened:
        """What happened until then. Its memory is good until done()."""
        ...

    def done(self) -> tuple[frozenset[int], int]:
        """Its samples have been unwound. Result: threads whose switches are known again, and from when on."""
        ...

    def by_width(self, left: SampleBatch, narrow: Mask) -> list[SampleBatch]:
        """Samples as batches of one architecture each."""
        ...

    def known(self, pid: npt.NDArray[np.integer]) -> Mask:
        """Which of these are processes of the recording? They need not have been sampled."""
        ...

    def shown(self, tid: npt.NDArray[np.integer], time_ns: I64) -> Mask:
        """Which of these threads, at these times, never sampled perhaps, are asked for and can be named? threads() has
        them then.
        """
        ...

    def ids_of(self, tid: npt.NDArray[np.integer], time_ns: I64) -> tuple[npt.NDArray[np.int32], I64]:
        """(pid, started) of threads at times; a thread of which nothing is known is its own process."""
        ...

    def news(self) -> set[int]:
        """Processes that have come, or run other code than before, since this was asked last."""
        ...

    def learn(self, feedback: Feedback) -> None: ...

    def threads(self) -> list[ThreadInfo]: ...

    def retire(self) -> None: ...

    def stats(self) -> CollectorStats: ...

    def close(self) -> None: ...
