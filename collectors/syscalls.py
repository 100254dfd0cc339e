"""Which system calls of x86-64 survive a ptrace stop, and which can be made to start again.

Sources: signal(7), "Interruption of system calls and library functions by stop signals"; the kernel's return
codes: ERESTARTSYS, ERESTARTNOHAND, ERESTARTNOINTR and ERESTART_RESTARTBLOCK are restarted by the kernel when no
signal handler runs, EINTR is not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyprof.errors import FormatError

READ, WRITE, POLL, READV, SELECT = 0, 1, 7, 19, 23
PAUSE, NANOSLEEP, FUTEX, EPOLL_WAIT, EPOLL_PWAIT = 34, 35, 202, 232, 281

EINTR = 4
RESTARTS = (512, 513, 514, 516)
"""ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK: the kernel runs the call again (errno.h)."""

SURVIVES = frozenset({
    POLL, SELECT, PAUSE, NANOSLEEP,
    61,   # wait4
    69,   # msgsnd
    70,   # msgrcv
    73,   # flock
    130,  # rt_sigsuspend
    219,  # restart_syscall: has proved it already
    230,  # clock_nanosleep
    243,  # mq_timedreceive
    247,  # waitid
    270,  # pselect6
    271,  # ppoll
})  # fmt: skip
"""Calls that the kernel restarts whatever their arguments. Writes are missing on purpose: cut short, they return what
they have written so far."""

_FUTEX_SURVIVES = frozenset({0, 6, 9})  # WAIT, LOCK_PI, WAIT_BITSET
_READS = frozenset({READ, READV})
_READ_SURVIVES = ("pipe:", "/dev/pts/", "/dev/tty", "anon_inode:[eventfd]", "anon_inode:[timerfd]",
                  "anon_inode:[signalfd]")  # fmt: skip

_RESTARTABLE = frozenset({
    READ, READV, EPOLL_WAIT,
    43,   # accept
    45,   # recvfrom
    47,   # recvmsg
    65,   # semop
    128,  # rt_sigtimedwait
    208,  # io_getevents
    220,  # semtimedop
    288,  # accept4
})  # fmt: skip
"""Calls that return EINTR only if they have done nothing yet, so that running them again is the same call."""

_RESTARTABLE_WITHOUT_MASK = {EPOLL_PWAIT: 9, 441: 9}
"""epoll_pwait, epoll_pwait2: call -> word of user_regs_struct (r8) with the signal mask, which must be NULL: with a
mask, a signal and the end of the wait belong together, and whoever gives one is ready for EINTR."""

SYSCALL_INSTRUCTION = b"\x0f\x05"


@dataclass(frozen=True, slots=True)
class BlockedCall:
    """A line of /proc/TID/syscall of a thread that does not run. number -1: not in a system call."""

    number: int
    args: tuple[int, ...]
    sp: int
    pc: int


def parse_syscall(line: bytes) -> BlockedCall | None:
    """None for "running". sp is 0 of a thread that has ended. Raises FormatError."""
    words = line.split()
    if len(words) < 3:
        return None
    try:
        number, sp, pc = int(words[0]), int(words[-2], 16), int(words[-1], 16)
        return BlockedCall(number, tuple(int(word, 16) for word in words[1:-2]), sp, pc)
    except ValueError:
        raise FormatError("syscall", 0, "not a line of /proc/PID/task/TID/syscall") from None


def survives_stop(call: BlockedCall, pid: int) -> bool:
    """Will this blocked call surely go on after a ptrace stop, as if nothing had been? In doubt: no."""
    if call.number < 0 or call.number in SURVIVES:
        return True
    if call.number == FUTEX:
        return len(call.args) > 1 and call.args[1] & 0x7F in _FUTEX_SURVIVES
    if call.number in _READS and call.args:
        try:
            return os.readlink(f"/proc/{pid}/fd/{call.args[0]}").startswith(_READ_SURVIVES)
        except OSError:
            return False
    return False


def restartable(number: int, regs: object) -> bool:
    """May a call that our stop made fail with EINTR be run again? regs: words of user_regs_struct."""
    if number in _RESTARTABLE:
        return True
    mask = _RESTARTABLE_WITHOUT_MASK.get(number)
    return mask is not None and regs[mask] == 0  # type: ignore[index]
