"""Randomness in sampling by perf_events: random rates of events, and a random choice among records.

No program may run in step with its samples. The kernel keeps the period of an event. A program that
alternates between two functions with that period would be sampled in one of them only.

Each event on a processor therefore has a different rate near the wanted one, and gets another rate after the
time of some samples. Any two samples that an event takes at different rates are independent.

An event on a thread keeps its period, also in the threads that inherit it. So each sample is chosen at random
from several records of its time. The number of records is not whole, so that they fall on all phases of such
a program.

An event that a new thread inherits begins a new period, and the time after a thread's last period is lost. So a thread
that lives shorter than a period is never sampled. With a period of 0.125 ms little is lost.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pyprof.collector_control import Stride
from pyprof.collectors.perf.ring_buffer_records import I64, SAMPLE, TIME, U64, Ring, Rings
from pyprof.lazy_dataclasses import replace
from pyprof.model.sample_batch import SampleBatch

LIFE_PERIODS = 16
"""Number of sampling periods after which a perf event gets another random rate."""
SPREAD = (0.5, 1.5)
"""Range of the random rates of perf events, as factors of the wanted rate, in which they are uniformly
distributed. The resulting periods differ by more than the wanted period, so samples of a program with that
period fall evenly on all of its phases.
"""
_LOST_BY_CHANGE = 0.5
"""Average number of samples that are lost when a perf event's rate changes, because the kernel then begins a
new period.
"""


class RandomRates:
    """The random rates of a set of perf events, by descriptor of the event.

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
        """Return a random rate for a perf event in Hz. Its average is a little above the wanted rate, to make up for
        samples that are lost when the rate changes.
        """
        return self._corrected_hz() * self._uniform(*SPREAD)

    def _corrected_hz(self) -> float:
        mean_samples = self._lived_samples / self._lives if self._lives else LIFE_PERIODS
        return self._mean_hz * (1 + _LOST_BY_CHANGE / mean_samples)

    def begin(self, fd: int, rate_hz: float) -> None:
        """Store the rate in Hz with which a perf event was opened, to vary it later."""
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
        """Count samples of a perf event at its present rate. Return True if the event must get another rate
        now.

        Each rate lasts for the same time, which the samples stand for. Only then is the average of the rates
        the wanted one. Time in which the event did not count is left out.
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
        """Stop varying the rate of a perf event, because it was closed."""
        self._hz.pop(fd, None)
        self._fresh.discard(fd)
        self._samples.pop(fd, None)


class SampleCounter:
    """A counter of the samples that the kernel has written to perf's ring buffers. It counts them before the
    collector reads them.
    """

    def __init__(self, rings: Rings) -> None:
        self._rings = rings
        self._positions: dict[int, int] = {}

    def count(self, into: Counter[int]) -> None:
        """Add the number of samples that the kernel has written since the last call to `into`, by processor."""
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


_RATE_HZ = 8000
"""Maximum number of perf records per second of a thread's processor time."""
_RECORDS = (2.6165, 2.6195)
"""Range from which a recording draws its number of perf records per sample, so that no program is in step
with the records.

The square of the golden ratio is 2.618: multiples of its inverse fall most evenly on the phases of a program. At 2.6
there would be 13 phases, of which a half of the program has 6 or 7.
"""
_JUDGED_NS, _MUCH = 50_000_000, 0.15
"""Limits for the decision to make more perf records per sample: the minimum time in ns that samples must
stand for before it is made, and the share of that time without samples.
"""
_MIN_CHECK_INTERVAL_NS, _MAX_CHECK_INTERVAL_NS = 100_000_000, 1 << 62


class RandomSelection:
    """A random choice of one item from each group of consecutive items. Groups continue from call to call.

    If the mean size of a group is not whole, each group has the next smaller or the next larger size by
    chance. So each item is chosen with the same probability.
    """

    def __init__(self) -> None:
        self.start_groups(1)

    def start_groups(self, mean: float) -> None:
        """Start groups with another mean size. One item of the group before was already chosen."""
        self._least, self._rest = int(mean), mean % 1
        self._start = 0
        """Position at which the next group of items begins, counted from the next item."""
        self._chosen = np.zeros(0, np.int64)

    def choose_items(self, n: int) -> I64:
        """Return the indices of those among the next n items that are chosen at random."""
        count = max(-(-(n - self._start) // self._least), 0)
        sizes = self._least + (_uniform(count) < self._rest)
        ends = self._start + np.cumsum(sizes)
        starts = ends - sizes
        begun = int(np.searchsorted(starts, n))  # groups that begin later are drawn in the next call
        chosen = (starts + _uniform(count) * sizes)[:begun].astype(np.int64)
        chosen = np.concatenate([self._chosen, chosen])
        self._start = (int(ends[begun - 1]) if begun else self._start) - n
        self._chosen = chosen[chosen >= n] - n
        return chosen[chosen < n]


def _uniform(count: int) -> npt.NDArray[np.float64]:
    """Return random numbers in [0, 1) from os.urandom(), because numpy.random takes 20 ms to load."""
    return np.frombuffer(os.urandom(8 * count), np.uint64) / 2**64


class Thinning:
    """A filter that keeps one in `factor` perf records at random. Records from before the first
    start_thinning() are all kept.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._records = random.uniform(*_RECORDS)
        self._since_ns = 0
        self._draw = RandomSelection()

    def start_thinning(self, rate_hz: float, now_ns: int) -> None:
        """Begin to make several perf records per sample and to drop all but a random one, so that no program
        runs in step with the samples.
        """
        self._change(self._usual(rate_hz), now_ns)

    def multiply(self, rate_hz: float, most_hz: float, now_ns: int) -> None:
        """Make more perf records per sample from now on, because threads are short.

        Args:
            rate_hz: Sampling rate.
            most_hz: Maximum rate of records that the rings can hold.
            now_ns: Current time.
        """
        factor = max(min(_RATE_HZ, most_hz) / rate_hz, self._usual(rate_hz))
        self._change(factor if factor >= 2 else 1.0, now_ns)

    def _usual(self, rate_hz: float) -> float:
        return self._records if rate_hz * self._records <= _RATE_HZ else 1.0

    def _change(self, factor: float, now_ns: int) -> None:
        if factor == self.factor:
            return
        if self.factor == 1:
            self._since_ns = now_ns
        self.factor = factor
        self._draw.start_groups(factor)

    def thin_records(self, words: U64, pieces: list[I64]) -> list[I64]:
        """Return the samples to keep: one in `factor` at random. Samples from before the thinning began are
        all kept.

        Args:
            words: Memory of the rings.
            pieces: Indices of the samples' first words.
        """
        if self.factor == 1 or not pieces:
            return pieces
        first = np.concatenate(pieces)
        dense = words[first + TIME].view(np.int64) >= self._since_ns
        keep = ~dense
        keep[np.flatnonzero(dense)[self._draw.choose_items(int(np.count_nonzero(dense)))]] = True
        return [first[keep]] if keep.any() else []


class Starvation:
    """A check whether too much processor time has no samples because threads live shorter than a sampling period.

    Attributes:
        check_interval_ns: Maximum time until the next call of is_starved(). It is short before the first decision.
    """

    def __init__(self, rate_hz: float) -> None:
        self.check_interval_ns = _MIN_CHECK_INTERVAL_NS
        self._period_ns = round(1e9 / rate_hz)
        self._due = self._seen = self._births = 0

    def is_starved(self, births: int, due_ns: int, seen_ns: int) -> bool:
        """Return True if too much processor time since the last decision has no samples.

        Args:
            births: Number of threads and processes that started since the last call. Each can have lost one
                period at most.
            due_ns: Total processor time that samples should stand for.
            seen_ns: Total processor time that samples do stand for.
        """
        self._births += births
        due, missing = due_ns - self._due, due_ns - self._due - (seen_ns - self._seen)
        if due < _JUDGED_NS:
            return False
        starved = _MUCH * due < missing < self._births * self._period_ns
        self._due, self._seen, self._births, self.check_interval_ns = due_ns, seen_ns, 0, _MAX_CHECK_INTERVAL_NS
        return starved


class Decimation:
    """A filter that keeps one of n samples (see Stride) and gives the kept sample the weight of all n.

    It is for samples that the kernel takes in any case. Dropped samples are not unwound.
    """

    def __init__(self, stride: Stride) -> None:
        self._stride = stride
        self._every = 1
        self._draw = RandomSelection()

    def thin_batch(self, batch: SampleBatch) -> SampleBatch:
        chosen, every = self.choose(len(batch))
        if every == 1:
            return batch
        part = batch.take_samples(chosen)
        return replace(part, weight=part.weight * every)

    def choose(self, n: int) -> tuple[I64, int]:
        """Choose which of the next n samples to keep, before any work is done for them.

        Returns:
            The indices of the samples to keep, and the factor of their weight.
        """
        if self._stride.every != self._every:
            self._every = self._stride.every
            self._draw.start_groups(self._every)
        if self._every == 1 or not n:
            return np.arange(n), 1
        return self._draw.choose_items(n), self._every
