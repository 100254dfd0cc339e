"""The rights of this process: functions that drop them permanently, and a filter of system calls.

The filter is for a process that only computes and uses descriptors which another process has opened. The
filter is a list of permitted calls. Every other call fails with EPERM, and a call of another architecture's
table kills the process. The process cannot open, create, rename or delete files, run programs, create
processes or sockets, trace or signal others, map memory as code, or do anything that needs a privilege. Some
calls are permitted only with certain arguments, see below.

Numbers are those of python-ptrace's tables. Sources: seccomp(2), linux/bpf_common.h, linux/seccomp.h, linux/audit.h.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import resource
import socket
import struct
from collections.abc import Sequence

from pyprof.collectors.linux import libc
from pyprof.model.arch.syscalls import call_names

NOBODY = 65534
UNUSED_USERS = range(61184, 65520)
"""Range of user ids that systemd assigns to services while they run, and that user databases should not
contain. An unprivileged process gets one of them.
"""
_MAX_CANDIDATES = 16
"""Maximum number of user ids that are tried for an unprivileged process before it gets the user id 65534."""
_NOEXEC_SEAL = 8
"""MFD_NOEXEC_SEAL (Linux 6.3): the contents of a memory file cannot be executed.

A host may require it (vm.memfd_noexec = 2), and logs a warning if a program does not request it.
"""


def become_unprivileged() -> int | None:
    """Change the user of this process, drop its groups and all capabilities, and return the new user id.

    A user id without other processes is chosen, because another process of the same user could kill or trace
    this one. If the user namespace has no such id, the new one is 65534.

    Returns:
        The new user id, or None if the process is not root or its user namespace has no other user.
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
    """Return the user ids to try for an unprivileged process, in random order. Processes that do not see each
    other then rarely choose the same one.
    """
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


_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_MEMORY = ("brk", "madvise", "mremap", "munmap", "membarrier")
_DESCRIPTORS = (
    *("close", "close_range", "dup", "dup2", "dup3", "fcntl", "fstat", "fstatfs", "lseek", "ftruncate", "memfd_create"),
    *("read", "readv", "pread64", "preadv", "preadv2", "write", "writev", "pwrite64", "pwritev", "fadvise64"),
    *("recvmsg", "recvfrom", "sendmsg", "sendto", "poll", "ppoll", "select", "pselect6"),
)
_NAMES = ("stat", "lstat", "newfstatat", "statx")
"""System calls that query files by name; fstat(3) of newer C libraries is newfstatat(2)."""
_THREADS = (
    *("futex", "set_robust_list", "get_robust_list", "rseq", "set_tid_address", "sched_yield", "sched_getaffinity"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "exit", "exit_group"),
)
_TIME = (
    *("clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "times", "getrusage"),
    *("sysinfo", "uname", "getrandom", "setitimer"),
)
_SELF = ("getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getcwd", "setsid")
ALLOWED = (*_MEMORY, *_DESCRIPTORS, *_NAMES, *_THREADS, *_TIME, *_SELF)

_PROT_EXEC = 4
_CLONE_THREAD = 0x10000
_PROCMAP_QUERY = 0xC0686611
_TCGETS = 0x5401
_PR_SET_NAME = 15
_PR_SET_VMA = 0x53564D41

_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
"""Offsets in struct seccomp_data. Arguments are 64-bit words, of which the filter checks the lower halves."""
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _is_one_of(argument: int, *values: int) -> list[bytes]:
    """Return BPF code of a seccomp filter that permits a call if the lower half of one argument has one of the given
    values.
    """
    tests = [_op(_EQUAL, value, len(values) - at) for at, value in enumerate(values)]
    return [_op(_LOAD, _ARGUMENTS + 8 * argument), *tests, _op(_RETURN, _REFUSE | errno.EPERM), _op(_RETURN, _ALLOW)]


def _has_bit(argument: int, bit: int, allowed: bool) -> list[bytes]:
    """Return BPF code of a seccomp filter that permits a call if a bit of an argument is set (`allowed` is
    True) or clear (False).
    """
    yes, no = (_ALLOW, _REFUSE | errno.EPERM) if allowed else (_REFUSE | errno.EPERM, _ALLOW)
    return [_op(_LOAD, _ARGUMENTS + 8 * argument), _op(_HAS_BIT, bit, 0, 1), _op(_RETURN, yes), _op(_RETURN, no)]


def _by_argument(pid: int) -> dict[str, list[bytes]]:
    """Return BPF code of a seccomp filter for each system call that is permitted only for some arguments, by
    its name.

    clone3 passes its flags by a pointer, which a filter cannot follow. It fails with ENOSYS, and the C
    library then uses clone.
    """
    return {
        "mmap": _has_bit(2, _PROT_EXEC, allowed=False),
        "mprotect": _has_bit(2, _PROT_EXEC, allowed=False),
        "clone": _has_bit(0, _CLONE_THREAD, allowed=True),
        "clone3": [_op(_RETURN, _REFUSE | errno.ENOSYS)],
        "ioctl": _is_one_of(1, _PROCMAP_QUERY, _TCGETS),
        "prctl": _is_one_of(0, _PR_SET_NAME, _PR_SET_VMA),
        "tgkill": _is_one_of(0, pid),  # abort(3)
        "prlimit64": _is_one_of(2, 0),  # to read a limit, not to set it
    }


def build_filter(machine: str, pid: int, more: Sequence[str] = ()) -> bytes:
    """Return a seccomp filter of system calls as an array of struct sock_filter.

    Args:
        machine: The machine, as in `uname -m`.
        pid: The process that gets the filter.
        more: Names of further permitted calls.

    Raises:
        NotImplementedError: The machine is not supported.
    """
    if machine not in _AUDIT_ARCH:
        raise NotImplementedError(f"no filter of system calls for {machine}")
    names = call_names(machine)
    # x32 repeats some names with higher numbers
    numbers = {names[number]: number for number in sorted(names, reverse=True)}
    numbers.setdefault("newfstatat", numbers.get("fstatat", -1))
    code = [_op(_LOAD, _ARCH), _op(_EQUAL, _AUDIT_ARCH[machine], 1), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32, 0, 1), _op(_RETURN, _KILL)]
    for name in (*ALLOWED, *more):
        if name in numbers:  # AArch64 lacks the older one of some pairs
            code += [_op(_EQUAL, numbers[name], 0, 1), _op(_RETURN, _ALLOW)]
    for name, body in _by_argument(pid).items():
        code += [_op(_EQUAL, numbers[name], 0, len(body)), *body]
    return b"".join([*code, _op(_RETURN, _REFUSE | errno.EPERM)])


def confine_process(code: bytes) -> None:
    """Install a seccomp filter for all threads of this process, permanently.

    Raises:
        OSError: The kernel refuses.
    """
    for failed in (libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1), libc.install_seccomp_filter(code)):
        if failed:
            raise OSError(-failed, os.strerror(-failed))
