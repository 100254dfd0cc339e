"""A limit for the time that the sampler takes to end.

The sampler may be blocked in a system call, or read an endless list in the target. Then it is abandoned, and the worker
writes what it has. A sampler that only waits for a processor is not abandoned, because it makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

LEAVE_S = 0.65
"""Time without a batch after which the sampler is abandoned, in seconds without waits for a processor.

The worker unwinds and resolves names until shortly after (worker/worker_client.py).
"""
STUB_S = 6.0
"""LEAVE_S in seconds for a target behind a GDB stub. The target is stopped, and the connection may be slow."""
_MAX_PERIODS = 10
"""Total time after which the sampler is abandoned even if batches still arrive, as a multiple of LEAVE_S."""
MAX_ELAPSED_S = 60.0
"""Maximum elapsed time in seconds without a batch after which the sampler is abandoned, with its waits for a
processor.
"""
_HANG_UP = 0.5
"""Fraction of LEAVE_S after which the sampler's requests for interpreter symbols get no responses."""
_LOOK_S = 0.02


class GrantedTime:
    """A clock that stands still while a thread of pyprof waits for a processor."""

    def __init__(self, waits: Callable[[], Mapping[int, float]]) -> None:
        """Start the clock that limits the time for the end of a recording.

        Args:
            waits: Returns how long each thread has waited for a processor since it began, in seconds by tid.
        """
        self._waits = waits
        self._before = waits()
        self._at = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the seconds since the clock was made in which no thread of pyprof waited. Call it often."""
        now, after = time.monotonic(), self._waits()
        waited = max((seconds - self._before.get(tid, 0.0) for tid, seconds in after.items()), default=0.0)
        self._seconds += max(now - self._at - waited, 0.0)
        self._at, self._before = now, after
        return self._seconds


class _Event(Protocol):
    def wait(self, timeout: float) -> bool: ...


class Ending(Protocol):
    """The protocol of a sampler that was requested to end."""

    @property
    def sampled(self) -> _Event:
        """The event that is set when the sampler takes no more samples."""
        ...

    @property
    def sent(self) -> int:
        """The number of batches that the sampler has sent to the worker."""
        ...

    def waits(self) -> Mapping[int, float]:
        """Return how long each thread of the sampler and the worker has waited for a processor, in seconds by tid."""
        ...

    def hang_up(self) -> None:
        """Close the connection over which the sampler requests interpreter symbols, so that it does not wait for
        them.
        """
        ...


def ended_in_time(sampling: Ending, leave_s: float = LEAVE_S) -> bool:
    """Wait for the end of a sampler that was just requested to end. Return False if it must be abandoned."""
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
