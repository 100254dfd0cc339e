"""Random rates of events, so that no program runs in step with its samples.

An event has a period that the kernel keeps. A program that alternates between two functions with that period would be
sampled in one of them only. So each event has a different rate near the wanted one, and gets another one after the time
of some samples. Any two samples that an event takes at different rates are independent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from pyprof.collectors.perf.records import SAMPLE
from pyprof.collectors.perf.ring import Ring, Rings

LIFE_PERIODS = 16
"""Number of sampling periods after which a perf event gets another rate."""
SPREAD = (0.5, 1.5)
"""Range of the random rates of perf events: they are uniformly distributed between these multiples of the wanted rate.
The resulting periods differ by more than the wanted period, so samples of a program with that period fall evenly on all
of its phases.
"""
_LOST_BY_CHANGE = 0.5
"""Average number of samples that a change of a perf event's rate costs, because the kernel then begins a whole new
period.
"""


class RandomRates:
    """The random rates of a set of perf events, by descriptor.

    Every second rate of an event mirrors the previous one, so that their average is soon the wanted rate: the number of
    samples measures the time that was spent.
    """

    def __init__(self, mean_hz: float, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._mean_hz = mean_hz
        self._uniform = uniform
        self._hz: dict[int, float] = {}
        self._fresh: set[int] = set()
        self._samples: Counter[int] = Counter()
        self._lives = self._lived_samples = 0

    def draw(self) -> float:
        """Return a random rate for a perf event in Hz. On average it makes up for the samples that changes of rates
        cost.
        """
        return self._corrected_hz() * self._uniform(*SPREAD)

    def _corrected_hz(self) -> float:
        mean_samples = self._lived_samples / self._lives if self._lives else LIFE_PERIODS
        return self._mean_hz * (1 + _LOST_BY_CHANGE / mean_samples)

    def begin(self, fd: int, rate_hz: float) -> None:
        """Remember the rate with which a perf event was opened."""
        self.forget(fd)
        self._hz[fd] = rate_hz

    def change(self, fd: int) -> float:
        """Choose the next rate of a perf event and return it in Hz."""
        corrected = self._corrected_hz()
        mirrored = sum(SPREAD) * corrected - self._hz[fd]
        if fd in self._fresh and SPREAD[0] * corrected <= mirrored <= SPREAD[1] * corrected:
            self._fresh.remove(fd)
            self._hz[fd] = mirrored
        else:
            self._fresh.add(fd)
            self._hz[fd] = self.draw()
        self._samples[fd] = 0
        return self._hz[fd]

    def is_over(self, fd: int, samples: int) -> bool:
        """Count samples that a perf event made, and return True if it is time for another rate.

        The time that the samples stand for decides, not their number. The average of the rates is the wanted one only
        if high and low rates last equally long. Time in which the event did not count is left out.
        """
        if fd not in self._hz:
            return False
        self._samples[fd] += samples
        if self._samples[fd] * self._mean_hz < LIFE_PERIODS * self._hz[fd]:
            return False
        self._lives += 1
        self._lived_samples += self._samples[fd]
        return True

    def forget(self, fd: int) -> None:
        """Forget a perf event that was closed."""
        self._hz.pop(fd, None)
        self._fresh.discard(fd)
        self._samples.pop(fd, None)


class SampleCounter:
    """A counter of samples in perf's rings, which counts them long before they are consumed."""

    def __init__(self, rings: Rings) -> None:
        self._rings = rings
        self._positions: dict[int, int] = {}

    def count(self, into: Counter[int]) -> None:
        """Add the number of samples of each processor since the last call to a counter."""
        for cpu, ring in self._rings.rings.items():
            head = ring.head
            position = max(self._positions.get(cpu, 0), ring.tail)
            if head - position <= ring.size:
                into[cpu] += self._count_ring(ring, position, head)
            self._positions[cpu] = head

    def _count_ring(self, ring: Ring, position: int, head: int) -> int:
        view, mask, first, found = self._rings.words.data, ring.size // 8 - 1, ring.first, 0
        while position < head:
            header: int = view[first + (position // 8 & mask)]
            size = header >> 48
            if size < 8 or size & 7:
                break  # the reader of the ring counts broken data
            found += header & 0xFFFF_FFFF == SAMPLE
            position += size
        return found
