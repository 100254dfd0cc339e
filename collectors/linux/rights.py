"""What this process may do: how many files it may hold open, in memory too; and giving up rights, for good."""

from __future__ import annotations

import contextlib
import errno
import os
import resource

from pyprof.collectors.linux import libc

NOBODY = 65534
_NOEXEC_SEAL = 8
"""MFD_NOEXEC_SEAL (Linux 6.3): what is in it never runs as a program. A host may insist (vm.memfd_noexec = 2), and says
so in its log where none asks for it.
"""


def become_nobody() -> bool:
    """True if this process, all its threads, has no rights from now on but those of everybody: it must be root. User,
    groups and with them all capabilities go. A user namespace may know no such user.
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


def raise_file_limit(most: int) -> None:
    """Up to the hard limit, or to `most` where that is less or there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, most) if hard > 0 else most
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def memory_file(name: str, sealing: bool = False) -> int:
    """A descriptor, closed on exec. sealing: it may be sealed. Raises OSError."""
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealing else 0)
    try:
        return os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)
