"""Events on threads that live shorter than a period: more records are made than samples are wanted.

An event that a new thread inherits begins a period of its own, and what the thread ran after its last period is lost.
So a thread that lives shorter than a period is never sampled. With a period of 0.2 ms little is lost. As
many records as fit into one period of the wanted rate make one sample: one of them, chosen by chance.
"""

from __future__ import annotations

import numpy as np

from pyprof.collectors.perf.records import I64, TIME, U64

_RATE_HZ = 5000
"""Records a second of a thread's time, at most."""


class Thinning:
    """factor: of so many records one is kept, if they were made after since_ns."""

    def __init__(self) -> None:
        self.factor = 1
        self._since_ns = 0
        self._skip = self._pick = 0
        self._random = np.random.default_rng()

    def begin(self, rate_hz: float, most_hz: float, now_ns: int) -> None:
        """From now on. rate_hz: of samples. most_hz: what the rings can hold."""
        self.factor = max(int(min(_RATE_HZ, most_hz) / rate_hz), 1)
        self._since_ns = now_ns

    def kept(self, words: U64, pieces: list[I64]) -> list[I64]:
        """pieces: first words of samples. Of all older ones, and of one in `factor` of the others."""
        if self.factor == 1 or not pieces:
            return pieces
        first = np.concatenate(pieces)
        dense = words[first + TIME].view(np.int64) >= self._since_ns
        keep = ~dense
        keep[np.flatnonzero(dense)[self._chosen(int(np.count_nonzero(dense)))]] = True
        return [first[keep]] if keep.any() else []

    def _chosen(self, n: int) -> I64:
        """Indices below n: one of each run of `factor`; runs go on from call to call."""
        runs = np.arange(-self._skip, n, self.factor)
        picks = self._random.integers(self.factor, size=len(runs))
        if self._skip:
            picks[0] = self._pick
        if len(runs):
            self._pick = int(picks[-1])
        self._skip = (self._skip + n) % self.factor
        at = runs + picks
        return at[(at >= 0) & (at < n)]
