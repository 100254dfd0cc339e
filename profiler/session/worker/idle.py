"""What the worker does while nobody waits for it comes after everything else on the machine (SCHED_IDLE).

That is the look-up of names ahead (names_ahead.py). On a busy machine an idle thread may get no processor for seconds,
and the other thread of the worker waits for it, too (the GIL). So whoever waits for the worker has it come back, again
and again until it has answered (Worker.wake). Only where the kernel lets a thread come back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PRIORITY = os.sched_param(0)


def may_come_back() -> bool:
    """Return True if this thread may leave SCHED_IDLE again. A confined worker may not.

    The kernel wants the same as for a step to a higher priority: a limit (RLIMIT_NICE), or CAP_SYS_NICE (sched(7)).
    """
    try:
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, usual - 1)
        os.setpriority(os.PRIO_PROCESS, 0, usual)
    except OSError:
        return False
    return True


@contextmanager
def idle() -> Iterator[None]:
    """Only where it may come back."""
    os.sched_setscheduler(0, os.SCHED_IDLE, _PRIORITY)
    try:
        yield
    finally:
        come_back(0)


def come_back(pid: int) -> None:
    """0: this thread. What is not idle stays as it is."""
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_BATCH, _PRIORITY)
