"""A limit for the time that the sampler takes to end.

The sampler may be blocked in a system call, or read an endless list in the target. Then it is abandoned, and the worker
writes what it has. A sampler that waits for a processor makes progress and is not abandoned. One that runs is abandoned
much later than one that is blocked: on a busy machine the last samples of many processes are seconds of work. Each
batch, each response of the worker and each process that was read is progress, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

LEAVE_S = 0.65
"""Time, in seconds, for which a sampler that was requested to end may be blocked without progress before it is
abandoned.

The worker unwinds and resolves names until shortly after that (worker/worker_client.py).
"""
STUB_S = 6.0
"""The same limit as LEAVE_S, in seconds, for a target behind a GDB stub. It is longer because the connection may be
slow.
"""
_MAX_RUN_PERIODS = 4
"""Time without progress after which a sampler that was requested to end, but still runs, is abandoned. It is a multiple
of LEAVE_S; waits for a processor do not count.
"""
_MAX_BLOCKED_PERIODS = 3
"""Time without progress after which a blocked sampler is abandoned on a busy machine, as a multiple of LEAVE_S.

The kernel blocks a read of memory while a task holds a lock of that memory, and that task may wait for a processor.
"""
_MAX_PERIODS = 30
"""Total time after which a sampler that was requested to end is abandoned even if it makes progress, as a multiple of
LEAVE_S.
"""
MAX_ELAPSED_S = 60.0
"""Time without progress, in seconds, after which a sampler that was requested to end is abandoned. Waits for a
processor count, too.
"""
_HANG_UP = 0.5
"""Fraction of LEAVE_S after which a blocked sampler no longer gets interpreter symbols from the worker, because it may
wait for them.
"""
_LOOK_S = 0.02


class EndFailure(Enum):
    """The reason why the watchdog has abandoned a sampler that did not end in time."""

    BLOCKED = "blocked"
    """The sampler waits in a system call that does not return."""
    SLOW = "slow"
    """The sampler runs, or waits for a processor, for longer than its work may take."""


class GrantedTime:
    """A clock for the time limit of a recording's end. It stands still while a thread of pyprof waits for a processor
    or makes progress.
    """

    def __init__(self, waits: Callable[[], Mapping[int, float]]) -> None:
        """Start the clock that limits the time for the end of a recording.

        Args:
            waits: Returns by tid for how many seconds of its life each thread has waited or made progress, which do not
                count.
        """
        self._waits = waits
        self._before = waits()
        self._at = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return how many seconds have counted since the clock was made. The caller must call this often."""
        now, after = time.monotonic(), self._waits()
        waited = max((seconds - self._before.get(tid, 0.0) for tid, seconds in after.items()), default=0.0)
        self._seconds += max(now - self._at - waited, 0.0)
        self._at, self._before = now, after
        return self._seconds


class _Event(Protocol):
    def wait(self, timeout: float) -> bool: ...


class Ending(Protocol):
    """The protocol by which the watchdog observes a sampler that was requested to end."""

    @property
    def sampled(self) -> _Event:
        """The event that is set when the sampler has taken its last sample."""
        ...

    @property
    def progress(self) -> int:
        """The number of units of work that the sampler and the worker have finished."""
        ...

    def waits(self) -> Mapping[int, float]:
        """Return how long each thread of the sampler and the worker has waited for a processor, in seconds by tid."""
        ...

    def activity(self) -> Mapping[int, float]:
        """Return for how long the sampler was not blocked, in seconds by tid.

        The sampler counts as not blocked while it runs, while it waits for a processor, and while it waits for a worker
        that does one of these.
        """
        ...

    def contention(self) -> float:
        """Return how many tasks run or wait for a processor now, for each processor."""
        ...

    def hang_up(self) -> None:
        """Close the connection over which the sampler requests interpreter symbols from the worker, so that the sampler
        does not wait for a response.
        """
        ...


def await_end(sampling: Ending, leave_s: float = LEAVE_S) -> EndFailure | None:
    """Wait for the end of a sampler that was just requested to end.

    Args:
        sampling: The sampler.
        leave_s: Time in seconds for which it may be blocked without progress. It is longer on a busy machine.

    Returns:
        The reason if the sampler must be abandoned, None if it has ended.
    """
    granted, blocked, progress = GrantedTime(sampling.waits), GrantedTime(sampling.activity), sampling.progress
    progress_s = blocked_s = 0.0
    progress_at = time.monotonic()
    while not sampling.sampled.wait(min(_LOOK_S, leave_s)):
        now_s, now_blocked_s = granted.seconds(), blocked.seconds()
        if sampling.progress != progress:
            progress, progress_s, blocked_s, progress_at = sampling.progress, now_s, now_blocked_s, time.monotonic()
        is_blocked = now_blocked_s - blocked_s > leave_s
        if is_blocked and now_blocked_s - blocked_s > leave_s * min(sampling.contention(), _MAX_BLOCKED_PERIODS):
            return EndFailure.BLOCKED
        is_late = now_s - progress_s > _MAX_RUN_PERIODS * leave_s or now_s > _MAX_PERIODS * leave_s
        if is_late or time.monotonic() > progress_at + MAX_ELAPSED_S:
            return EndFailure.SLOW
        if now_blocked_s - blocked_s > _HANG_UP * leave_s or now_s - progress_s > leave_s:
            sampling.hang_up()
    return None
