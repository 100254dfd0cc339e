"""The check whether stops miss too much processor time because threads or processes end too soon.

A process of a millisecond has mostly ended before it can be stopped. perf_events sample it, but users who may not see
time in the kernel by perf_events lose that time. So stops are better as long as they see most of what runs.
"""

from __future__ import annotations

import math

_MUCH, _SIGMAS = 0.2, 2
_UNSURE_NS = 100_000_000
"""Processor time in nanoseconds that may be missed in addition, because stops first have to learn which threads they
sample.
"""
_WINDOW_NS = 2_000_000_000
"""Processor time in nanoseconds after which a new decision between stops and perf_events begins."""


class MissedTime:
    """The processor time that has no samples since the last decision."""

    def __init__(self, rate_hz: float, births: int) -> None:
        self._period_ns = 1e9 / rate_hz
        self._due_ns = self._seen_ns = 0
        self._births = births

    def is_much(self, births: int, due_ns: int, seen_ns: int) -> bool:
        """Return True if too much processor time has no samples because lives are short, and not by chance.

        Args:
            births: Number of threads and processes that started.
            due_ns: Time that samples should stand for.
            seen_ns: Time that they stand for. All three count from the beginning.
        """
        due, seen, born = due_ns - self._due_ns, seen_ns - self._seen_ns, births - self._births
        if due <= 0:
            return False
        least = max(_MUCH * due + _UNSURE_NS, _SIGMAS * math.sqrt(due * self._period_ns))
        if due > _WINDOW_NS:
            self._due_ns, self._seen_ns, self._births = due_ns, seen_ns, births
        return least < due - seen < born * self._period_ns
