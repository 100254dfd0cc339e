"""SCHED_IDLE priority for background work of the worker.

The work is background symbolization (background_symbolizer.py). On a busy machine an idle thread may get no processor
for seconds. The other thread of the worker then waits for it, because of the GIL. So a process that waits for the
worker resets the policy again and again until the worker has answered (Worker.wake). It is used only where the kernel
allows a thread to leave SCHED_IDLE.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PRIORITY = os.sched_param(0)


def may_come_back() -> bool:
    """Return True if this thread may leave the SCHED_IDLE policy again. A confined worker may not.

    The kernel requires the same as for a higher priority: RLIMIT_NICE or CAP_SYS_NICE (sched(7)).
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
    """Run a block under SCHED_IDLE. Only for threads for which may_come_back() is true."""
    os.sched_setscheduler(0, os.SCHED_IDLE, _PRIORITY)
    try:
        yield
    finally:
        come_back(0)


def come_back(pid: int) -> None:
    """Move a thread from SCHED_IDLE to SCHED_BATCH.

    Args:
        pid: The thread, 0 for the calling thread.
    """
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_BATCH, _PRIORITY)
