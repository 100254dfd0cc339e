"""The protocol of a collector, which produces batches of samples until it is stopped.

The session unwinds, interns and writes. It gives back to the collector what only the walk of a stack knows: how much of
a thread's stack is needed, and which sleeping thread must be stopped after all.

The pauses of stopped threads are counted in a histogram, so that a long recording needs no more memory than a short
one. Its buckets are log-linear, 64 for each power of two, so a percentile is accurate to 1.6 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pyprof.collectors.cpu_time_accounting import Account
from pyprof.errors import AccessDenied
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.loss_reason_texts import Note
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch

SUB_BITS = 6
SUB = 1 << SUB_BITS
BUCKETS = 40 * SUB
"""Number of buckets of the histogram of pauses, up to 2**45 ns (ten hours). Longer pauses count in the last bucket."""


def bucket_of(ns: int) -> int:
    """Return the histogram bucket of a pause's length. 0 to 63 ns have a bucket each, and each further power of two has
    64.
    """
    shift = max(ns.bit_length() - SUB_BITS - 1, 0)
    return min((shift << SUB_BITS) + (ns >> shift), BUCKETS - 1)


def middle_of(bucket: int) -> float:
    """Return the pause length in nanoseconds in the middle of a histogram bucket."""
    shift = max((bucket >> SUB_BITS) - 1, 0)
    return float(((bucket - (shift << SUB_BITS)) << shift) + ((1 << shift) - 1) / 2)


@dataclass(frozen=True)
class Pauses:
    """A histogram of the pauses of the target's threads: how long the profiler kept each thread stopped.

    Attributes:
        counts: (BUCKETS,) int64, number of pauses in each bucket.
        total_ns: Exact sum of all pauses.
    """

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    total_ns: int = 0

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __add__(self, other: Pauses) -> Pauses:
        """Return the sum of two histograms."""
        return Pauses(self.counts + other.counts, self.total_ns + other.total_ns)

    def __sub__(self, earlier: Pauses) -> Pauses:
        """Return a histogram of the pauses since `earlier`, an earlier snapshot of the same PauseLog."""
        return Pauses(self.counts - earlier.counts, self.total_ns - earlier.total_ns)

    def percentile_ns(self, percent: float) -> float:
        """Return a percentile of the pause lengths in nanoseconds; 100 gives the longest pause. 0.0 if there are
        none.
        """
        reached = np.cumsum(self.counts)
        if not reached[-1]:
            return 0.0
        rank = max(int(np.ceil(reached[-1] * percent / 100)), 1)
        return middle_of(int(np.searchsorted(reached, rank)))


class PauseLog:
    """A histogram to which a collector adds each pause of a target's thread. snapshot() returns its current state."""

    def __init__(self) -> None:
        self._counts = np.zeros(BUCKETS, np.int64)
        self._total_ns = 0

    def add_pause(self, ns: int) -> None:
        """Add one pause of a target's thread, with this length in nanoseconds, to the histogram."""
        self._counts[bucket_of(ns)] += 1
        self._total_ns += ns

    def snapshot(self) -> Pauses:
        """Return a copy of the histogram that later pauses do not change."""
        return Pauses(self._counts.copy(), self._total_ns)


class CollectorRefused(AccessDenied):
    """The error for a collector that cannot be used for this target or on this system. Another collector may work."""

    reason = "collector_refused"


@dataclass(frozen=True, slots=True)
class Feedback:
    """The results of a batch's unwinding that tell the collector how to take its next samples. Columns have one element
    for each sample of the batch.

    Attributes:
        batch: The batch that was walked.
        top: Highest stack address that the walk needed (Walk.top), or 0 if the walk did not reach the root.
        missing: Address (avma) of the stack word at which the walk ended because the copy lacks it
            (StackEnd.UNREADABLE), else 0. The thread's next copy should contain it.
        stop: True for samples of a sleeping thread whose walk needs a callee-saved register. The collector should take
            the thread's next sample by a stop, once in this sleep, if its system call allows that.
        look: Function that reads new generated code in the target, which appears and disappears. The
            collector calls it after each round of samples. None means that no call is needed any more.
        took_ns: Duration of the walk, or 0 if it is not known.
        has_new_code: True if many functions of a managed runtime were met for the first time. The next samples should
            not wait, because the runtime may discard the code or move what names it before it is read.
    """

    batch: SampleBatch
    top: npt.NDArray[np.uint64]
    missing: npt.NDArray[np.uint64]
    stop: npt.NDArray[np.bool_]
    look: Callable[[], None] | None = None
    took_ns: int = 0
    has_new_code: bool = False


@dataclass(frozen=True, slots=True)
class CollectorStats:
    """Statistics of a collector since it began.

    Attributes:
        ticks: Number of sampling times that the collector kept. All others are counted as skipped.
        pauses: Stops of threads, by their length.
        skipped: Number of sampling times that were missed because pyprof was late.
        unchanged: Number of samples taken without a stop because the thread had not run since its last sample.
        blocked: Number of samples taken without a stop because the thread slept in the kernel.
        notes: Notes for the summary. The first one says how samples were taken.
        accounts: Processor time by the pid of each selected process, with its children if they are followed.
        ticking_ns: Time in which the ticks were due, so that ticks / ticking_ns is the rate reached. It is the elapsed
            time. If each thread or processor has its own clock, it is the sum of their times.
    """

    ticks: int = 0
    pauses: Pauses = field(default_factory=Pauses)
    skipped: int = 0
    unchanged: int = 0
    blocked: int = 0
    notes: tuple[Note, ...] = ()
    accounts: Mapping[int, Account] = field(default_factory=dict)
    ticking_ns: int = 0


NOBODY = 0
"""The source_id (identifier of a collector) of batches whose unwinding yields no feedback to a collector."""


class CollectorState(Protocol):
    """The part of a collector that the unwinding code uses: threads, statistics and feedback.

    In the worker process, which has no collector, another object implements it.
    """

    def learn(self, feedback: Feedback) -> None:
        """Accept the feedback about one of the batches that this collector has yielded, which need not be the latest
        one.

        The combined collector passes it to the source of the batch (source_id).
        """
        ...

    def threads(self) -> list[ThreadInfo]:
        """Return all threads that were ever sampled, with their latest known names."""
        ...

    def stats(self) -> CollectorStats:
        """Return the statistics since the collector was opened."""
        ...


class Collector(CollectorState, Protocol):
    """A source of batches of samples.

    The caller iterates over batches() once. stop(), which a signal handler may call too, ends the iteration after the
    current sample. close() releases everything and may be called twice.
    """

    def batches(self) -> Iterator[SampleBatch]:
        """Yield batches of samples as they become ready, and at least one batch in each
        CollectOptions.flush_s seconds.

        An empty batch shows that the collector is alive.
        """
        ...

    def retire(self) -> None:
        """Forget the threads and processes that had already ended when the previous window was closed.

        The caller calls it after it closed a window, between two batches.
        """
        ...

    def stop(self) -> None:
        """Make the iterator of batches() end after the current sample. Any thread may call this."""
        ...

    def close(self) -> None:
        """Release all resources of the kernel and the target."""
        ...


class SampleSource(Collector, Protocol):
    """The protocol of a collector that takes its samples itself, in contrast to one that passes on batches of other
    collectors.

    Attributes:
        acknowledges: True if the source acknowledges flushes itself. False if another collector completes its batches.
        flushed_ns: End of the time whose samples it has yielded, including those in the batch that it yields now.
        source_id: Identifier of its batches, unique within the recording.
    """

    acknowledges: bool
    flushed_ns: int

    @property
    def source_id(self) -> int:
        """Identifier of the batches of this source, unique within the recording."""
        ...
