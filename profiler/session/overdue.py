"""The end of the sampling: how long it may take once it was asked for.

A sampler may be in a call of the kernel that does not return, or in a list of the target's that has no end. It is left
there, and the worker writes what it has. A sampler that only waits for a processor is not left: it gets there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

LEAVE_S = 0.65
"""Seconds that the sampling may go on without a batch, waits for a processor not counted. The worker unwinds and names
until shortly after (worker/link.py).
"""
STUB_S = 6.0
"""The same behind a stub: what is behind it stands still, and a line may be slow."""
_MAX_PERIODS = 10
"""The sampling is left after this many times LEAVE_S, also if batches still come."""
MAX_ELAPSED_S = 60.0
"""The sampling is left when it has had no batch for so many seconds, waits for a processor counted."""
_HANG_UP = 0.5
"""Part of LEAVE_S after which the sampler's questions about files get no answers."""
_LOOK_S = 0.02


class GrantedTime:
    """A clock that stands still while some thread of pyprof waits for a processor."""

    def __init__(self, waits: Callable[[], Mapping[int, float]]) -> None:
        """Start the clock.

        Args:
            waits: Returns for each thread how many seconds it has waited for a processor since it began.
        """
        self._waits = waits
        self._before = waits()
        self._at = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the seconds since the clock was made in which no thread waited. Call it often."""
        now, after = time.monotonic(), self._waits()
        waited = max((seconds - self._before.get(tid, 0.0) for tid, seconds in after.items()), default=0.0)
        self._seconds += max(now - self._at - waited, 0.0)
        self._at, self._before = now, after
        return self._seconds


class _Event(Protocol):
    def wait(self, timeout: float) -> bool: ...


class Ending(Protocol):
    """A sampling that was told to end."""

    @property
    def sampled(self) -> _Event:
        """Set when no more samples are taken."""
        ...

    @property
    def sent(self) -> int:
        """Number of batches that went to the worker."""
        ...

    def waits(self) -> Mapping[int, float]:
        """Return for each thread of the sampler and the worker how long it has waited for a processor, in seconds."""
        ...

    def hang_up(self) -> None:
        """Answer no more questions of the sampler about files."""
        ...


def ended_in_time(sampling: Ending, leave_s: float = LEAVE_S) -> bool:
    """Wait for the end of a sampling that was just told to end. Return False if it is to be left."""
    clock, sent = GrantedTime(sampling.waits), sampling.sent
    progress_s, progress_at = 0.0, time.monotonic()
    while not sampling.sampled.wait(min(_LOOK_S, leave_s)):
        granted_s = clock.seconds()
        if sampling.sent != sent:
            sent, progress_s, progress_at = sampling.sent, granted_s, time.monotonic()
        idle_s = granted_s - progress_s
        if idle_s > leave_s or granted_s > _MAX_PERIODS * leave_s or time.monotonic() > progress_at + MAX_ELAPSED_S:
            return False
        if idle_s > _HANG_UP * leave_s:
            sampling.hang_up()
    return True
