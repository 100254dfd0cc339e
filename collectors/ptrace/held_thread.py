"""A thread between SEIZE and DETACH, and how its stop ends."""

from __future__ import annotations

from enum import IntEnum

from pyprof.collectors.linux.syscalls import BlockedCall
from pyprof.collectors.ptrace.threads import Thread
from pyprof.collectors.targets.spaces import SpaceTracker
from pyprof.records import dataclass

BOUND_NS = 200_000
"""Longest wait for one thread to stop; then it is looked after between the other samples. A running thread stops in
some 10 us, one that waits for a processor when it gets one."""


@dataclass(eq=False, slots=True)
class HeldThread:
    """since_ns: monotonic, when it was last known to run; asked_ns: when it was told to stop. asleep: the call in which
    it slept before that, None where it ran.
    """

    thread: Thread
    spaces: SpaceTracker
    weight: int
    since_ns: int = 0
    asked_ns: int = 0
    asleep: BlockedCall | None = None


def nobody() -> None:
    """No thread is held without being known."""
    return None


class Outcome(IntEnum):
    """Of a stop."""

    TAKEN = 0
    PENDING = 1  # it has not stopped yet (uninterruptible sleep, no processor for it)
    REFUSED = 2  # a debugger has it, or we may not
    GONE = 3
    UNUSABLE = 4  # it stopped, but there is nothing to unwind
    ASLEEP = 5  # it had fallen asleep before it stopped, and sleepers are not wanted
