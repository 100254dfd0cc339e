"""A thread between SEIZE and DETACH, and the outcome of its stop."""

from __future__ import annotations

from enum import IntEnum

from pyprof.collectors.linux.syscalls import BlockedCall
from pyprof.collectors.ptrace.threads import Thread
from pyprof.collectors.targets.spaces import SpaceTracker
from pyprof.records import dataclass

MAX_STOP_WAIT_NS = 200_000
"""Maximum wait for one thread to stop. After that it is checked between the other samples.

A running thread stops in some 10 us. A thread that waits for a processor stops when it gets one.
"""


@dataclass(eq=False, slots=True)
class StoppedThread:
    """A thread that is seized.

    Attributes:
        thread: The thread.
        spaces: Its address space.
        weight: Weight of its sample.
        since_ns: Monotonic time at which it was last known to run.
        asked_ns: Monotonic time at which it was interrupted.
        asleep: The system call in which it slept before that, or None if it ran.
    """

    thread: Thread
    spaces: SpaceTracker
    weight: int
    since_ns: int = 0
    asked_ns: int = 0
    asleep: BlockedCall | None = None


def find_no_thread() -> None:
    """Return None: no thread is held outside Stopper.held."""
    return None


class Outcome(IntEnum):
    """The outcome of a stop."""

    TAKEN = 0
    PENDING = 1  # it has not stopped yet (uninterruptible sleep, or it waits for a processor)
    REFUSED = 2  # a debugger traces it, or we may not
    GONE = 3
    UNUSABLE = 4  # it stopped, but there is nothing to unwind
    ASLEEP = 5  # it had fallen asleep before it stopped, and sleeping threads are not sampled
