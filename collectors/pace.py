"""When to sample: a grid of slots of 1/rate, one sampling time at random inside the middle of each.

The jitter keeps the sampler from running in step with the target. Slots that went by while we were late are
skipped and counted, never made up for: nobody looked, so nothing is claimed of that time. When the target is stopped
for too long, only every stride-th slot is used, and each sample stands for stride slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable

JITTER = 0.3
_WINDOW_NS = 500_000_000
_SLOWEST_HZ = 1.0


class Pace:
    """start_ns: monotonic clock. max_overhead: most share of time spent in stops, None for no limit.

    random: uniform in [0, 1).
    """

    def __init__(self, rate_hz: float, max_overhead: float | None, start_ns: int, random: Callable[[], float]) -> None:
        self.period_ns = max(1, round(1e9 / rate_hz))
        self.skipped = 0
        self.stride = 1
        self.lowest_hz = rate_hz
        self._limit = max_overhead
        self._longest_stride = max(1, int(rate_hz / _SLOWEST_HZ))
        self._random = random
        self._start = start_ns
        self._slot = -1
        self._window_start = start_ns
        self._window_stopped = 0

    @property
    def weight(self) -> int:
        """How many slots one sample stands for: those left out on purpose, not those that we were late for."""
        return self.stride

    def next_due(self, now_ns: int) -> int:
        """Go to the next slot; monotonic time at which to sample. Slots wholly in the past are skipped."""
        at = (now_ns - self._start) // self.period_ns
        wanted = self._slot + self.stride
        slot = max(wanted, int(at))
        self.skipped += slot - wanted
        self._slot = slot
        jitter = (2 * self._random() - 1) * JITTER
        return self._start + round((slot + 0.5 + jitter) * self.period_ns)

    def stopped(self, pause_ns: int) -> None:
        self._window_stopped += pause_ns

    def adjust(self, now_ns: int) -> bool:
        """At the end of a window choose the stride that keeps the limit. True if the rate fell to a new low."""
        elapsed = now_ns - self._window_start
        if self._limit is None or elapsed < _WINDOW_NS:
            return False
        share = self._window_stopped / elapsed
        self._window_start, self._window_stopped = now_ns, 0
        if self._limit <= 0:
            wanted = self._longest_stride
        else:
            wanted = math.ceil(self.stride * share / self._limit)
        if wanted < self.stride:
            wanted = max(wanted, self.stride // 2)
        self.stride = min(max(1, wanted), self._longest_stride)
        rate = 1e9 / self.period_ns / self.stride
        if rate < self.lowest_hz:
            self.lowest_hz = rate
            return True
        return False
