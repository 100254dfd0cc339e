"""Context switches as a collector reports them: threads leave their processors and return.

The package offcpu computes off-CPU time from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

IN, BLOCKED, PREEMPTED, ENDED = 0, 1, 2, 3
"""Kinds of context switches of a thread: it gets a processor, leaves it to wait, leaves it to another thread,
or ends.
"""

Gap = tuple[int, int]
"""A pair (begin, end) in nanoseconds: a span of time whose context switch records were lost."""

MIN_ON_NS = 50_000_000
"""Minimum time in ns for which a frequently switching thread's switches are recorded before their recording
is paused again.
"""


def count_covered_ns(gaps: Iterable[Gap]) -> int:
    """Return the time in ns that lies in at least one of the gaps. Gaps may overlap."""
    total, reached = 0, 0
    for begin, end in sorted(gaps):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


@dataclass(frozen=True, slots=True)
class ThreadEvents:
    """Context switches and other events of threads as columns of shape (n,). `kind` is the kind of a switch,
    or zero for other events.
    """

    tid: I64
    time_ns: I64
    kind: I64

    @classmethod
    def make_points(cls, tid: npt.NDArray[np.integer], time_ns: I64, kind: I64 | None = None) -> ThreadEvents:
        return cls(tid.astype(np.int64), time_ns, np.zeros(len(tid), np.int64) if kind is None else kind)

    def select_points(self, those: Mask) -> ThreadEvents:
        return ThreadEvents(self.tid[those], self.time_ns[those], self.kind[those])

    def remove_threads(self, tids: Collection[int]) -> ThreadEvents:
        if not tids:
            return self
        return self.select_points(~np.isin(self.tid, list(tids)))


@dataclass(frozen=True, slots=True)
class SwitchBatch:
    """The samples and context switches that a collector has read up to some time.

    Attributes:
        running: Samples of threads on processors.
        left: Samples taken when threads left their processors, with the registers of 64-bit code.
        narrow: True for samples of `left` that are 32-bit code.
        switches: Switches of the recording's processes, and ends of any thread.
        since_ns: Time from which a thread's switches are known, by tid, for threads that existed before.
        gaps: Spans of time whose switch records were lost.
        paused: Threads whose switches are not recorded now, because they are too frequent.
        unsampled: Spans of time in which samples of running threads were lost.
    """

    running: list[SampleBatch]
    left: SampleBatch
    narrow: Mask
    switches: ThreadEvents
    since_ns: Mapping[int, int]
    gaps: list[Gap]
    paused: frozenset[int]
    unsampled: list[Gap] = field(default_factory=list)


class SwitchSource(Protocol):
    """A collector that reports context switches.

    Attributes:
        source_ids: Identifiers of the collector's batches.
        flush_s: Maximum time between two calls of take_switches(), in seconds.
        alive: Pids of the recorded processes that have not ended.
        paused: Threads that switch so often that their switches are not recorded for a while.
    """

    @property
    def source_ids(self) -> frozenset[int]: ...

    @property
    def flush_s(self) -> float: ...

    @property
    def alive(self) -> list[int]: ...

    @property
    def paused(self) -> frozenset[int]: ...

    def take_switches(self, now_ns: int) -> SwitchBatch:
        """Return the samples and context switches up to `now_ns`. Their memory is valid until
        release_switches() is called.
        """
        ...

    def release_switches(self) -> tuple[frozenset[int], int]:
        """Release the memory of the last take_switches(), whose samples have all been unwound.

        Returns:
            (tids of threads whose switches are recorded again after a pause, monotonic time from which on).
        """
        ...

    def split_by_width(self, batch: SampleBatch, narrow: Mask) -> list[SampleBatch]:
        """Return the samples at context switches as batches of one architecture each; `narrow` marks those of
        32-bit code.
        """
        ...

    def mask_recorded(self, pid: npt.NDArray[np.integer]) -> Mask:
        """Return a mask of the pids that belong to recorded processes. Samples of these processes are not required."""
        ...

    def mask_shown(self, tid: npt.NDArray[np.integer], time_ns: I64) -> Mask:
        """Return a mask of the threads that the profile should show and that can be named.

        The threads need not have samples. From then on, threads() includes them.

        Args:
            tid: Threads.
            time_ns: Time at which each had its tid.
        """
        ...

    def find_thread_ids(self, tid: npt.NDArray[np.integer], time_ns: I64) -> tuple[npt.NDArray[np.int32], I64]:
        """Return two columns (pid, start time) for threads that had the given tids at the given times. An
        unknown thread counts as its own process.
        """
        ...

    def take_new_processes(self) -> set[int]:
        """Return the pids of processes that appeared or called exec since the last call."""
        ...

    def learn(self, feedback: Feedback) -> None: ...

    def threads(self) -> list[ThreadInfo]: ...

    def retire(self) -> None: ...

    def stats(self) -> CollectorStats: ...

    def close(self) -> None: ...
