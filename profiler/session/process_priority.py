"""The priorities of the sampler and the worker, by what the user waits for.

While the user waits for the first sample or for the file, both get a raised priority, where that is allowed. While
samples are taken the sampler has its usual priority, and the worker a lower one.

Niceness counts only among the processes of one session: the kernel first shares the processors among sessions
(sched(7), "The autogroup feature"). So the worker leads a separate session, whose niceness is set too. On a busy
machine the sampler of `dump` and `record` leads one, too (cli/front_process.py). Elsewhere it stays in the session of
its terminal. Other processes share that session, so its niceness is changed only if the sampler leads it. Control
groups have precedence over sessions, and stay unchanged.

Background work of the worker (background_symbolizer.py) runs under SCHED_IDLE, but only where the kernel allows a
thread to leave that policy. On a busy machine an idle thread may get no processor for seconds. The other thread of the
worker then waits for it, because of the GIL. So a process that waits for the worker resets the policy again and again
until the worker has answered (Worker.wake).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NICENESS = 2
"""Niceness of the worker relative to the sampler's.

It is small, because on a busy machine the worker must not fall behind.
"""
PREFERRED = -10
"""Niceness of a process of pyprof while the user waits. With it, the process gets three quarters of a processor next to
three busy loops.
"""
_USUAL = 0
"""Niceness of a process of pyprof whose user did not choose one."""

_leads_start = False
"""True from raise_startup_priority() until restore_priority(), if the kernel allowed this process a higher priority."""


_PRIORITY = os.sched_param(0)


def begin_session() -> None:
    """Make this process the leader of a new session, so that the kernel gives it a separate priority group (autogroup).
    Do nothing if the process leads a process group.
    """
    with suppress(OSError):
        os.setsid()


def raise_startup_priority() -> None:
    """Raise the priority of this process until restore_priority() is called. Keep a niceness that the user chose.

    The process must belong to pyprof alone. Threads that exist already keep their priority.
    """
    global _leads_start
    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) == _USUAL:
            os.setpriority(os.PRIO_PROCESS, 0, PREFERRED)
            _leads_start = True
            _set_session(os.getpid(), PREFERRED)


def is_slowed_by_other_sessions() -> bool:
    """Return True if this process has a raised priority that counts little, because threads of other sessions may wait
    for the same processors and this process does not lead its session.
    """
    if not _leads_start or os.getsid(0) == os.getpid():
        return False
    try:
        with open("/proc/sys/kernel/sched_autogroup_enabled", "rb") as file:
            has_groups = file.read().strip() == b"1"
    except OSError:  # a kernel without CONFIG_SCHED_AUTOGROUP
        return False
    return has_groups and _is_machine_busy()


def _is_machine_busy() -> bool:
    """Return True if more threads of the machine are runnable than it has processors."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[3].partition(b"/")[0]) > (os.cpu_count() or 1)


def restore_priority() -> None:
    """Undo raise_startup_priority() for all threads of this process."""
    global _leads_start
    if _leads_start:
        _leads_start = False
        _set_threads(os.getpid(), _USUAL)
        _set_session(os.getpid(), _USUAL)


def restore_child_priority(pid: int) -> None:
    """Undo raise_startup_priority() for a child that is about to execute the user's program."""
    if _leads_start:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, _USUAL)


def lower_priority(pid: int) -> None:
    """Lower the priority of the worker below the sampler's. The sampler calls this after restore_priority().

    Args:
        pid: Pid of the worker.
    """
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
    _set_threads(pid, niceness)
    for tid in _threads(pid):
        with suppress(OSError):
            os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
    _set_session(pid, niceness)


def raise_priority(pid: int) -> None:
    """Raise the priority of a process of pyprof and of the session that it leads, where that is allowed."""
    _set_threads(pid, PREFERRED)
    _set_session(pid, PREFERRED)


def copy_priority(pid: int) -> None:
    """Give this process the niceness of another process in its session, which waits for this process."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, pid))


def _threads(pid: int) -> Iterator[int]:
    with suppress(OSError):
        yield from map(int, os.listdir(f"/proc/{pid}/task"))


def _set_threads(pid: int, niceness: int) -> None:
    for tid in _threads(pid):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, tid, niceness)


def _set_session(pid: int, niceness: int) -> None:
    """Set the autogroup niceness of the session that this process leads. Do nothing if it leads none."""
    with suppress(OSError):
        if os.getsid(pid) == pid:
            with open(f"/proc/{pid}/autogroup", "w") as file:
                file.write(str(niceness))


def can_leave_idle_policy() -> bool:
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
    """Return a context manager that runs its block under SCHED_IDLE. It may be used only in threads for which
    can_leave_idle_policy() is true.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, _PRIORITY)
    try:
        yield
    finally:
        leave_idle_policy(0)


def leave_idle_policy(pid: int) -> None:
    """Move a thread from SCHED_IDLE to SCHED_BATCH.

    Args:
        pid: The thread, 0 for the calling thread.
    """
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_BATCH, _PRIORITY)
