"""Histogram of pause lengths, so that a long recording needs no more memory than a short one.

Buckets are log-linear, 64 for each power of two, so a percentile is accurate to 1.6 %.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.records import dataclass, field

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
    """Return the pause length in nanoseconds that a histogram bucket stands for."""
    shift = max((bucket >> SUB_BITS) - 1, 0)
    return float(((bucket - (shift << SUB_BITS)) << shift) + ((1 << shift) - 1) / 2)


@dataclass(frozen=True)
class Pauses:
    """A histogram of the pauses that the profiler caused.

    Attributes:
        counts: (BUCKETS,) int64, number of pauses in each bucket.
        total_ns: Exact sum of all pauses.
    """

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    total_ns: int = 0

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __add__(self, other: Pauses) -> Pauses:
        """Return a histogram of the pauses of both histograms."""
        return Pauses(self.counts + other.counts, self.total_ns + other.total_ns)

    def __sub__(self, earlier: Pauses) -> Pauses:
        """Return a histogram of the pauses since an earlier state of the same log."""
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
    """A histogram of pauses to which pauses are added during a recording. snapshot() returns its current state."""

    def __init__(self) -> None:
        self._counts = np.zeros(BUCKETS, np.int64)
        self._total_ns = 0

    def add_pause(self, ns: int) -> None:
        self._counts[bucket_of(ns)] += 1
        self._total_ns += ns

    def snapshot(self) -> Pauses:
        return Pauses(self._counts.copy(), self._total_ns)
