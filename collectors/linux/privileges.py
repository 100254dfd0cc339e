"""The rights of this process, and functions that drop them permanently."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import resource
import socket

from pyprof.collectors.linux import libc

NOBODY = 65534
UNUSED_USERS = range(61184, 65520)
"""Range of user ids that systemd assigns to services while they run. User databases should not contain them."""
_MAX_CANDIDATES = 16
"""Maximum number of user ids that are tried for an unprivileged process before it gets the user id 65534."""
_NOEXEC_SEAL = 8
"""MFD_NOEXEC_SEAL (Linux 6.3): the contents of a memory file cannot be executed.

A host may require it (vm.memfd_noexec = 2), and logs a warning if a program does not request it.
"""


def become_unprivileged() -> int | None:
    """Change the user of this process, drop its groups and all capabilities, and return the new user.

    The new user has no other process, because another process of the same user could kill or trace this one. If a user
    namespace has no such user, it is NOBODY.

    Returns:
        The new user, or None if the process is not root or its user namespace has no other user.
    """
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(OSError):
        os.setgroups([])
        with contextlib.suppress(OSError):
            for candidate in _candidates():
                if _reserve_user(candidate):
                    _change_user(candidate)
                    return candidate
        _change_user(NOBODY)
        return NOBODY
    return None


def _candidates() -> list[int]:
    """Return random user ids, so that processes that do not see each other rarely take the same one."""
    draws = memoryview(os.urandom(4 * _MAX_CANDIDATES)).cast("I")
    return [UNUSED_USERS[draw % len(UNUSED_USERS)] for draw in draws]


def _reserve_user(user: int) -> bool:
    """Return True if no process and no user database has this user id. It is then reserved until this process ends."""
    for look_up in (pwd.getpwuid, grp.getgrgid):
        with contextlib.suppress(KeyError):
            look_up(user)
            return False
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0pyprof-user-{user}")
        os.getpriority(os.PRIO_USER, user)  # the kernel searches all processes
    except ProcessLookupError:
        lock.detach()  # the descriptor stays open
        return True
    except OSError:
        pass
    lock.close()
    return False


def _change_user(user: int) -> None:
    """Set the user and the group of this process; both have the same number.

    Raises:
        OSError: The kernel refuses.
    """
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def hide_process() -> None:
    """Prevent processes of the same user from tracing this process and reading its memory."""
    with contextlib.suppress(OSError):
        libc.prctl(libc.PR_SET_DUMPABLE, 0)


def raise_file_limit(max_files: int) -> None:
    """Raise the limit of open files to the hard limit, or to `max_files` if that is lower or there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, max_files) if hard > 0 else max_files
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def create_memory_file(name: str, sealing: bool = False) -> int:
    """Return the descriptor of a new memory file, closed on exec.

    Args:
        name: Name of the file in /proc.
        sealing: True if the file may be sealed.

    Raises:
        OSError: The kernel refuses.
    """
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealing else 0)
    try:
        return os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)
