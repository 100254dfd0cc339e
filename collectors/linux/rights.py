"""Giving up rights, for good: the user, the groups and with them all capabilities."""

from __future__ import annotations

import contextlib
import os

from pyprof.collectors.linux import libc

NOBODY = 65534


def become_nobody() -> bool:
    """True if this process, all its threads, has no rights from now on but those of everybody: it must be root. A user
    namespace may know no such user.
    """
    if os.geteuid() != 0:
        return False
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return False
    return True


def hide() -> None:
    """Nobody of the same user may trace this process or read its memory."""
    with contextlib.suppress(OSError):
        libc.prctl(libc.PR_SET_DUMPABLE, 0)
