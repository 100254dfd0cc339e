"""The worker's share of the processors: less than others', more once somebody waits for its end.

Niceness counts among the processes of a session only: before that the kernel shares the processors among sessions
(sched(7), "The autogroup feature"). A worker that somebody waits for is a session of its own, whose niceness is set,
too: else all that runs in one other session counts as much as it. Control groups that share processors come before
sessions: nothing is done about those.
"""

from __future__ import annotations

import os
from contextlib import suppress

NICENESS = 2
"""Below the sampler and the target. Not far below: on a machine that is busy all the time the worker must keep up."""
PREFERRED = -10
"""Niceness of what still runs once the end was asked for: beside three busy loops it has three quarters of the time."""


def begin_session() -> None:
    """In the worker or its keeper. Whoever leads a group of processes cannot."""
    with suppress(OSError):
        os.setsid()


def take_less() -> None:
    """In the worker, from its start on."""
    with suppress(OSError):
        os.nice(NICENESS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if os.getsid(0) == os.getpid():
            _of_session(os.getpid(), NICENESS)


def take_more(pid: int) -> None:
    """In the sampler, for all threads of its own process or the worker's, where we may have that."""
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(tid), PREFERRED)


def as_much_as(pid: int) -> None:
    """In a process for which the one of that number waits."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness := os.getpriority(os.PRIO_PROCESS, pid))
        if os.getsid(pid) == pid and os.getsid(0) != os.getpid():
            begin_session()
            _of_session(os.getpid(), niceness)


def session_takes_more(pid: int) -> bool:
    """The same for its session. False: it has not begun one yet."""
    with suppress(OSError):
        if os.getsid(pid) != pid:
            return False
        _of_session(pid, PREFERRED)
    return True


def _of_session(pid: int, niceness: int) -> None:
    with open(f"/proc/{pid}/autogroup", "w") as file:
        file.write(str(niceness))
