"""State of one task from /proc, read between its stop and its resume."""

from __future__ import annotations

import os

from pyprof.collectors.linux.procfs import parse_state, read_thread_status

ENDED_STATES = "ZX"
_SIZE = 1024


def read_stop_state(tid: int) -> str:
    """Return the letter of the state in /proc/TID/stat, or X if there is no such thread."""
    try:
        fd = os.open(f"/proc/{tid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse_state(os.read(fd, _SIZE))
        finally:
            os.close(fd)
    except OSError:
        return "X"


def is_own_child(tid: int) -> bool:
    try:
        status = read_thread_status(tid)
    except OSError:
        return False
    return status.get("PPid") == str(os.getpid()) and status.get("Tgid") == str(tid)


def has_pending_signal(tid: int) -> bool:
    """Return True if a signal is pending that the thread does not block, or if that is unknown."""
    try:
        status = read_thread_status(tid)
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        return bool(pending & ~int(status["SigBlk"], 16))
    except (OSError, KeyError, ValueError):
        return True


def has_pending_handler(tid: int, signum: int) -> bool:
    """Return True if a handler of the thread is about to run, False if that is unknown.

    Args:
        tid: The thread.
        signum: Signal with which it has stopped, 0 for none.
    """
    try:
        status = read_thread_status(tid)
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        due = pending & ~int(status["SigBlk"], 16) | (1 << signum >> 1)
        return bool(due & int(status["SigCgt"], 16))
    except (OSError, KeyError, ValueError):
        return False
