"""The registers of a thread in a ptrace stop, and what they say about the system call that the stop
interrupted.

The register set (NT_PRSTATUS) is read as that of one architecture. The kernel delivers a task's registers in
the layout of the code that the task runs: a 64-bit kernel delivers those of 32-bit code in the 32-bit layout.
Their size shows which layout it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.model.arch import Arch

EINTR = 4
RESTARTS = (512, 513, 514, 516)
"""Errors by which the kernel runs a system call again (errno.h): ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND,
ERESTART_RESTARTBLOCK.
"""

_INTERRUPTED = frozenset({EINTR, *RESTARTS})


class Regset:
    """The registers of one stopped thread, and what they say about the system call that the stop has interrupted.

    Attributes:
        arch: The architecture.
        words: The registers in the order of the kernel's user_regs_struct.
        columns: The memory of `words` as an array.
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
        """Return the six arguments of the system call that a stopped thread is in, from its registers."""
        return tuple(self.words[slot] for slot in self.arch.kernel.syscall_args)

    @property
    def broken_off(self) -> bool:
        """True if the stopped thread's system call was interrupted: its result register contains one of the kernel's
        errors for that.
        """
        return (-self.words[self.arch.kernel.syscall_return] & self.arch.mask) in _INTERRUPTED

    def was_asleep(self, code: Callable[[int, int], bytes]) -> bool:
        """Return True if the stop interrupted a system call in which the thread slept.

        In this case the result of the system call shows that it was interrupted, or the kernel has already
        prepared its restart. If the kernel does not report a call, the code before pc shows it.

        Args:
            code: Function (avma, size) that returns code of the task.
        """
        if self.arch.kernel.syscall_number >= 0:
            return self.call >= 0 and (self.broken_off or self.restarts(code))
        if not self.broken_off:
            return self.restarts(code)
        pc = self.arch.code_address(self.pc)
        return any(code(pc - len(each), len(each)) == each for each in self.arch.kernel.syscall_codes)

    def restarts(self, code: Callable[[int, int], bytes]) -> bool:
        """Return True if the kernel will run the interrupted system call of the stopped thread again when the thread
        continues.

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
        """Mark the stopped thread as being in no system call, so that the kernel does not restart the call.
        Return the call's number, with which put_call() undoes this.
        """
        slot = self.arch.kernel.syscall_number
        number, self.words[slot] = self.words[slot], self.arch.mask
        return number

    def put_call(self, number: int) -> None:
        self.words[self.arch.kernel.syscall_number] = number

    def put_back(self, result: int, pc: int) -> None:
        self.words[self.arch.kernel.syscall_return], self.words[self._pc] = result, pc
