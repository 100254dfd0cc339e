"""When a loop that was told to end is left where it is: in a call of the kernel that does not return, in endless lists.

What counts is the time in which it takes samples: on a machine that is busy, only what the loop computes itself, or
waits for in the kernel. Where it waits for the worker, that one has time limits of its own (worker/link.py).
"""

from __future__ import annotations

import os
import time
from typing import Protocol

from pyprof.collectors.linux import procfs

LEAVE_S = 0.7
"""So long it may go on. Names are looked up until shortly before (worker/link.py); what there is is written then."""
ELAPSED_S = 6.0
"""A loop that does not get its processor time is left then. So is one that waits for a stub: what is behind it stands
still, and a line may be slow.
"""
_HANG_UP = 0.5
"""For this part of that time its questions about files are answered."""
_LOOK_S = 0.02


class _Ended(Protocol):
    def wait(self, timeout: float) -> bool: ...


class Ending(Protocol):
    """sampled: nothing is sampled any more. collecting: the collector is at work."""

    @property
    def sampled(self) -> _Ended: ...

    @property
    def collecting(self) -> bool: ...

    def hang_up(self) -> None: ...


def ended_in_time(sampling: Ending, tid: int, leave_s: float = LEAVE_S) -> bool:
    """tid: the thread of the loop, which was told to end just now."""
    began = seen = time.monotonic()
    waited_s, spent_s, listened_to = procfs.waited_s(os.getpid(), tid), 0.0, True
    while not sampling.sampled.wait(_LOOK_S):
        now, waits_s = time.monotonic(), procfs.waited_s(os.getpid(), tid)
        if sampling.collecting:
            spent_s += max(now - seen - (waits_s - waited_s), 0)
        seen, waited_s = now, waits_s
        share = max(spent_s / leave_s, (now - began) / ELAPSED_S)
        if share > _HANG_UP and listened_to:
            listened_to = False
            sampling.hang_up()
        if share > 1:
            return False
    return True
