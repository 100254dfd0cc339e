"""Events on threads that live shorter than a period: more records are made than samples are used.

An event that a new thread inherits begins a new period, and the time after a thread's last period is lost. So a thread
that lives shorter than a period is never sampled. With a period of 0.125 ms little is lost. The records of one period
of the wanted rate make one sample: one of them, chosen at random.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from pyprof.collectors.perf.records import I64, TIME, U64
from pyprof.flush_protocol import Stride
from pyprof.model.sample import SampleBatch
from pyprof.records import replace

_RATE_HZ = 8000
"""Maximum number of records per second of a thread's time."""
_JUDGED_NS, _MUCH = 50_000_000, 0.15
"""Time that must be due for a decision, and the share of it without samples above which more records are made."""
_SOON_NS, _NO_HURRY_NS = 100_000_000, 1 << 62


class Draw:
    """A random choice of one item from each group of n consecutive items. Groups continue from call to call."""

    def __init__(self) -> None:
        self._of = 1
        self._skip = self._pick = 0

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng()  # numpy.random takes 20 ms to load

    def begin(self, of: int) -> None:
        """Start groups of a new size. The choice in the current group is already made."""
        self._of, self._skip, self._pick = of, 0, 0

    def take(self, n: int) -> I64:
        """Return the indices of the chosen ones of the next n items."""
        runs = np.arange(-self._skip, n, self._of)
        picks = self._random.integers(self._of, size=len(runs))
        if self._skip:
            picks[0] = self._pick
        if len(runs):
            self._pick = int(picks[-1])
        self._skip = (self._skip + n) % self._of
        at = runs + picks
        return at[(at >= 0) & (at < n)]


class Thinning:
    """A filter that keeps one of `factor` records, of those that were made after the first begin()."""

    def __init__(self) -> None:
        self.factor = 1
        self._since_ns = 0
        self._draw = Draw()

    def begin(self, rate_hz: float, most_hz: float, now_ns: int) -> None:
        """Choose the factor for records from now on.

        Args:
            rate_hz: Rate of samples.
            most_hz: Rate of records that the rings can hold.
            now_ns: Current time.
        """
        before, self.factor = self.factor, max(int(min(_RATE_HZ, most_hz) / rate_hz), 1)
        if before == 1:
            self._since_ns = now_ns
        self._draw.begin(self.factor)

    def kept(self, words: U64, pieces: list[I64]) -> list[I64]:
        """Return the samples to keep: all older ones, and one in `factor` of the others.

        Args:
            words: Memory of the rings.
            pieces: Indices of the samples' first words.
        """
        if self.factor == 1 or not pieces:
            return pieces
        first = np.concatenate(pieces)
        dense = words[first + TIME].view(np.int64) >= self._since_ns
        keep = ~dense
        keep[np.flatnonzero(dense)[self._draw.take(int(np.count_nonzero(dense)))]] = True
        return [first[keep]] if keep.any() else []


class Starvation:
    """A check whether much of the time has no samples because threads are short.

    Attributes:
        patience_ns: Maximum time until the next call of found(). It is short before the first decision.
    """

    def __init__(self, rate_hz: float) -> None:
        self.patience_ns = _SOON_NS
        self._period_ns = round(1e9 / rate_hz)
        self._due = self._seen = self._births = 0

    def found(self, births: int, due_ns: int, seen_ns: int) -> bool:
        """Return True if too much time since the last decision has no samples.

        Args:
            births: Number of threads and processes that started since the last call. Each can miss one period at most.
            due_ns: Total time that samples should stand for.
            seen_ns: Total time that they stand for.
        """
        self._births += births
        due, missing = due_ns - self._due, due_ns - self._due - (seen_ns - self._seen)
        if due < _JUDGED_NS:
            return False
        starved = _MUCH * due < missing < self._births * self._period_ns
        self._due, self._seen, self._births, self.patience_ns = due_ns, seen_ns, 0, _NO_HURRY_NS
        return starved


class Decimation:
    """A filter that keeps one of n samples, as a Stride demands, and gives it the weight of all n.

    It is for samples that the kernel takes anyway. Samples that it drops are counted and not unwound.
    """

    def __init__(self, stride: Stride) -> None:
        self.left_out = 0
        self._stride = stride
        self._every = 1
        self._draw = Draw()

    def thinned(self, batch: SampleBatch) -> SampleBatch:
        if self._stride.every != self._every:
            self._every = self._stride.every
            self._draw.begin(self._every)
        if self._every == 1 or not len(batch):
            return batch
        part = batch.take(self._draw.take(len(batch)))
        self.left_out += len(batch) - len(part)
        return replace(part, weight=part.weight * self._every)
