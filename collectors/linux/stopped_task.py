"""The registers of a stopped task, and the system calls that a ptrace stop does not change.

Sources: signal(7), "Interruption of system calls and library functions by stop signals", and the kernel's return codes.
The kernel restarts ERESTARTSYS, ERESTARTNOHAND, ERESTARTNOINTR and ERESTART_RESTARTBLOCK if no signal handler runs, but
not EINTR. Numbers of calls: Kernel.syscalls.

The register set (NT_PRSTATUS) is read as that of one architecture. The kernel delivers a task's registers in the layout
of the code that the task runs. A 64-bit kernel delivers those of 32-bit code in the 32-bit layout, and the size shows
which.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.errors import FormatError
from pyprof.model.arch import Arch
from pyprof.records import dataclass

EINTR = 4
RESTARTS = (512, 513, 514, 516)
"""Errors by which the kernel runs a system call again (errno.h): ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND,
ERESTART_RESTARTBLOCK.
"""

SURVIVES = frozenset({
    "poll", "ppoll", "ppoll_time64", "select", "_newselect", "pselect6", "pselect6_time64", "pause",
    "nanosleep", "clock_nanosleep", "clock_nanosleep_time64", "wait4", "waitpid", "waitid", "msgsnd", "msgrcv", "flock",
    "sigsuspend", "rt_sigsuspend", "mq_timedreceive", "mq_timedreceive_time64",
    "restart_syscall",  # was already restarted once
})  # fmt: skip
"""System calls that the kernel restarts after a stop, whatever their arguments.

Writes are missing on purpose: if they are cut short, they return the number of bytes written so far.
"""

_FUTEX_SURVIVES = frozenset({0, 6, 9})  # WAIT, LOCK_PI, WAIT_BITSET
_READS = frozenset({"read", "readv"})
_READ_SURVIVES = ("pipe:", "/dev/pts/", "/dev/tty", "anon_inode:[eventfd]", "anon_inode:[timerfd]",
                  "anon_inode:[signalfd]")  # fmt: skip
_IPC_SURVIVES = frozenset({11, 12})  # MSGSND, MSGRCV

_RESTARTABLE = frozenset({
    "read", "readv", "epoll_wait", "accept", "accept4", "recv", "recvfrom", "recvmsg", "semop", "semtimedop",
    "semtimedop_time64", "rt_sigtimedwait", "rt_sigtimedwait_time64", "io_getevents",
})  # fmt: skip
"""System calls that return EINTR only before they have any effect, so that running them again is the same call."""

_SOCKETCALL_RESTARTABLE = frozenset({5, 10, 12, 17, 18})  # ACCEPT, RECV, RECVFROM, RECVMSG, ACCEPT4 (linux/net.h)
_IPC_RESTARTABLE = frozenset({1, 4})  # SEMOP, SEMTIMEDOP (linux/ipc.h)

_RESTARTABLE_WITHOUT_MASK = {"epoll_pwait": 4, "epoll_pwait2": 4}
"""System call -> index of its argument with the signal mask, which must be NULL for a restart.

With a mask, a signal and the end of the wait belong together, and a program that passes one expects EINTR.
"""


@dataclass(frozen=True, slots=True)
class BlockedCall:
    """A line of /proc/TID/syscall of a thread that does not run. The number -1 means that it is in no system call."""

    number: int
    args: tuple[int, ...]
    sp: int
    pc: int


def parse_syscall(line: bytes) -> BlockedCall | None:
    """Parse a line of /proc/TID/syscall. Return None for "running". sp is 0 if the thread has ended.

    Raises:
        FormatError: The line is not valid.
    """
    words = line.split()
    if len(words) < 3:
        return None
    try:
        number, sp, pc = int(words[0]), int(words[-2], 16), int(words[-1], 16)
        return BlockedCall(number, tuple(int(word, 16) for word in words[1:-2]), sp, pc)
    except ValueError:
        raise FormatError("syscall", 0, "not a line of /proc/PID/task/TID/syscall") from None


def can_survive_stop(call: BlockedCall, pid: int, arch: Arch) -> bool:
    """Return True if a blocked call surely continues after a ptrace stop as if nothing had happened."""
    if call.number < 0:
        return True
    name, args = arch.kernel.call_names.get(call.number, ""), call.args
    if name in SURVIVES:
        return True
    if name in ("futex", "futex_time64"):
        return len(args) > 1 and args[1] & 0x7F in _FUTEX_SURVIVES
    if name == "ipc":
        return len(args) > 0 and args[0] & 0xFFFF in _IPC_SURVIVES
    if name in _READS and args:
        try:
            return os.readlink(f"/proc/{pid}/fd/{args[0]}").startswith(_READ_SURVIVES)
        except OSError:
            return False
    return False


def can_restart(arch: Arch, number: int, args: Sequence[int]) -> bool:
    """Return True if a system call that failed with EINTR because of a stop may be run again.

    Args:
        arch: Architecture of the call.
        number: Number of the call.
        args: The six arguments of the call.
    """
    name = arch.kernel.call_names.get(number, "")
    if name in _RESTARTABLE:
        return True
    if name == "socketcall":
        return args[0] in _SOCKETCALL_RESTARTABLE
    if name == "ipc":
        return args[0] & 0xFFFF in _IPC_RESTARTABLE
    mask = _RESTARTABLE_WITHOUT_MASK.get(name)
    return mask is not None and args[mask] == 0


_INTERRUPTED = frozenset({EINTR, *RESTARTS})


class Regset:
    """The registers of one stopped thread, and what they say about the system call that the stop has interrupted.

    Attributes:
        arch: The architecture.
        words: The registers in the order of user_regs_struct.
        columns: The same memory as an array.
    """

    def __init__(self, arch: Arch, ptrace: PtraceCalls) -> None:
        self.arch = arch
        count = arch.kernel.regset_size // arch.word
        self.words = ptrace.regs if arch.word == 8 else ptrace.narrow_regs
        self.columns = np.frombuffer(memoryview(self.words).cast("B"), f"u{arch.word}", count)
        self._sp, self._pc = arch.kernel.prstatus[arch.sp], arch.kernel.prstatus[arch.pc]
        self._eintr = -EINTR & arch.mask

    @property
    def sp(self) -> int:
        return self.words[self._sp]

    @property
    def pc(self) -> int:
        return self.words[self._pc]

    @property
    def interrupted(self) -> bool:
        """True if the result register of the stopped thread contains -EINTR."""
        return bool(self.words[self.arch.kernel.syscall_return] == self._eintr)

    @property
    def result(self) -> int:
        """The result of the stopped thread's system call."""
        value, bits = self.words[self.arch.kernel.syscall_return], 8 * self.arch.word
        return value - (1 << bits) if value >> (bits - 1) else value

    @property
    def call(self) -> int:
        """Number of the system call that the stopped thread is in; -1 if it is in none or that is unknown."""
        arch = self.arch
        if arch.kernel.syscall_number < 0:
            return -1
        number = self.words[arch.kernel.syscall_number]
        return -1 if number >> (8 * arch.word - 1) else number

    @property
    def args(self) -> tuple[int, ...]:
        """Return the arguments of the system call that a stopped thread is in, from its registers."""
        return tuple(self.words[slot] for slot in self.arch.kernel.syscall_args)

    @property
    def broken_off(self) -> bool:
        """True if the stopped thread's system call was interrupted: its result register contains one of the kernel's
        errors for that.
        """
        return (-self.words[self.arch.kernel.syscall_return] & self.arch.mask) in _INTERRUPTED

    def was_asleep(self, code: Callable[[int, int], bytes]) -> bool:
        """Return True if the stop interrupted a system call in which the thread slept.

        Then the result of the system call shows that it was interrupted, or the kernel has already prepared its
        restart. If the kernel does not report a call, the code does: pc is after the instruction.

        Args:
            code: (avma, size) -> code of the task.
        """
        if self.arch.kernel.syscall_number >= 0:
            return self.call >= 0 and (self.broken_off or self.restarts(code))
        if not self.broken_off:
            return self.restarts(code)
        pc = self.arch.code_address(self.pc)
        return any(code(pc - len(each), len(each)) == each for each in self.arch.kernel.syscall_codes)

    def restarts(self, code: Callable[[int, int], bytes]) -> bool:
        """Return True if the kernel has prepared to run the stopped thread's system call again.

        Then pc is at a system call instruction. The result register contains no result, but on x86 the call's number.
        """
        pc = self.arch.code_address(self.pc)
        return any(code(pc, len(each)) == each for each in self.arch.kernel.syscall_codes)

    def begin_again(self, call: int, code: int) -> None:
        """Rewind pc of the stopped thread to the system call instruction, so that the call is restarted.

        Args:
            call: Number of the call.
            code: Length of the instruction before pc in bytes.
        """
        self.words[self.arch.kernel.syscall_return] = call
        self.words[self._pc] = self.pc - code

    def leave_call(self) -> int:
        """Mark the stopped thread as in no system call, so that the result is final. Return the call number for
        put_call().
        """
        slot = self.arch.kernel.syscall_number
        number, self.words[slot] = self.words[slot], self.arch.mask
        return number

    def put_call(self, number: int) -> None:
        self.words[self.arch.kernel.syscall_number] = number

    def put_back(self, result: int, pc: int) -> None:
        self.words[self.arch.kernel.syscall_return], self.words[self._pc] = result, pc
