"""Events on threads that live shorter than a period: more records are made than samples are wanted.

An event that a new thread inherits begins a period of its own, and what the thread ran after its last period is lost.
So a thread that lives shorter than a period is never sampled. With a period of 0.125 ms little is lost. As
many records as fit into one period of the wanted rate make one sample: one of them, chosen by chance.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from pyprof.collectors.perf.records import I64, TIME, U64
from pyprof.handover import Stride
from pyprof.model.sample import SampleBatch
from pyprof.records import replace

_RATE_HZ = 8000
"""Records a second of a thread's time, at most."""
_JUDGED_NS, _MUCH = 50_000_000, 0.15
"""When so much time was due, and such a part of it has no samples."""
_SOON_NS, _NO_HURRY_NS = 100_000_000, 1 << 62


class Draw:
    """One of each run of so many, runs going on from call to call; begin() begins a new one."""

    def __init__(self) -> None:
        self._of = 1
        self._skip = self._pick = 0

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng()  # numpy.random takes 20 ms to load

    def begin(self, of: int) -> None:
        """Of so many from now on. What a run that was begun has is kept or not, as it was drawn."""
        self._of, self._skip, self._pick = of, 0, 0

    def take(self, n: int) -> I64:
        """Indices of the next n."""
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
    """factor: of so many records one is kept, if they were made after since_ns."""

    def __init__(self) -> None:
        self.factor = 1
        self._since_ns = 0
        self._draw = Draw()

    def begin(self, rate_hz: float, most_hz: float, now_ns: int) -> None:
        """From now on. rate_hz: of samples. most_hz: what the rings can hold."""
        before, self.factor = self.factor, max(int(min(_RATE_HZ, most_hz) / rate_hz), 1)
        if before == 1:
            self._since_ns = now_ns
        self._draw.begin(self.factor)

    def kept(self, words: U64, pieces: list[I64]) -> list[I64]:
        """pieces: first words of samples. Of all older ones, and of one in `factor` of the others."""
        if self.factor == 1 or not pieces:
            return pieces
        first = np.concatenate(pieces)
        dense = words[first + TIME].view(np.int64) >= self._since_ns
        keep = ~dense
        keep[np.flatnonzero(dense)[self._draw.take(int(np.count_nonzero(dense)))]] = True
        return [first[keep]] if keep.any() else []


class Starvation:
    """Is much of the time without samples, because threads are short? patience_ns: how long the next question may wait;
    not long before the first judgement.
    """

    def __init__(self, rate_hz: float) -> None:
        self.patience_ns = _SOON_NS
        self._period_ns = round(1e9 / rate_hz)
        self._due = self._seen = self._births = 0

    def found(self, births: int, due_ns: int, seen_ns: int) -> bool:
        """In the time since the last judgement. births: of threads and processes since the last question; of each not
        more than a period is missing. due_ns: what samples should stand for; seen_ns: what they do.
        """
        self._births += births
        due, missing = due_ns - self._due, due_ns - self._due - (seen_ns - self._seen)
        if due < _JUDGED_NS:
            return False
        starved = _MUCH * due < missing < self._births * self._period_ns
        self._due, self._seen, self._births, self.patience_ns = due_ns, seen_ns, 0, _NO_HURRY_NS
        return starved


class Decimation:
    """One of so many samples in place of them all, as a Stride says: its weight is theirs. For samples that the
    kernel takes anyway; what is left out is not unwound, and counted.
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
