"""State of one task from /proc, read between its stop and its resume."""

from __future__ import annotations

import os

from pyprof.collectors.linux.procfs import parse_stat, thread_status

ENDED = "ZX"


def state(tid: int) -> str:
    """The letter of /proc/TID/stat; X if there is no such thread."""
    try:
        with open(f"/proc/{tid}/stat", "rb") as file:
            return parse_stat(file.read()).state
    except OSError:
        return "X"


def is_own_child(tid: int) -> bool:
    try:
        status = thread_status(tid)
    except OSError:
        return False
    return status.get("PPid") == str(os.getpid()) and status.get("Tgid") == str(tid)


def signal_due(tid: int) -> bool:
    """Is a signal pending that the thread does not block? In doubt yes."""
    try:
        status = thread_status(tid)
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        return bool(pending & ~int(status["SigBlk"], 16))
    except (OSError, KeyError, ValueError):
        return True


def handled_signal_due(tid: int, signum: int) -> bool:
    """Is a signal about to be handled by a handler of the thread: one that is pending, or signum, with which it has
    stopped (0: none)? In doubt no.
    """
    try:
        status = thread_status(tid)
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        due = pending & ~int(status["SigBlk"], 16) | (1 << signum >> 1)
        return bool(due & int(status["SigCgt"], 16))
    except (OSError, KeyError, ValueError):
        return False
