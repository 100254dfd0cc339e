"""What our stop has done to the system call of a thread: undone where that can be, else counted.

before_release() is called while the thread is stopped: it keeps what only then can be seen, and raises nothing.
"""

from __future__ import annotations

import signal

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.regset import Regset
from pyprof.collectors.linux.syscalls import EINTR, restartable
from pyprof.collectors.linux.task_state import handled_signal_due, signal_due
from pyprof.collectors.linux.transfers import ShortCall, by_itself, short_call
from pyprof.diagnostics import Diagnostics

RESTARTED = "system call of the target restarted"
INTERRUPTED = "system call of the target may have failed with EINTR"

_MEMORY = 32 << 10
"""Bytes: two arrays of as many struct iovec as there may be."""
_INTERRUPT_STOP = signal.SIGTRAP | libc.PTRACE_EVENT_STOP << 8


class InterruptedCalls:
    """Of one thread at a time."""

    def __init__(self, ptrace: libc.PtraceCalls, diagnostics: Diagnostics) -> None:
        self._ptrace = ptrace
        self._diagnostics = diagnostics
        self._memory = libc.Arena(_MEMORY)
        self._tid = 0

    def before_release(self, tid: int, status: int, regset: Regset) -> ShortCall | None:
        """status: of the stop. Returns the call that the stop may have cut short, for after_release()."""
        self._tid = tid
        if regset.interrupted:
            self._restart(status, regset)
            return None
        number, result = regset.call, regset.result
        if number < 0 or result < 0:
            return None
        found = short_call(regset.arch, tid, number, regset.args, result, self.read)
        if found is None or (status >> 8 and status != _INTERRUPT_STOP):  # a SIGSTOP would have cut it, too
            return None
        if regset.restarts(self.read) or handled_signal_due(tid, 0 if status >> 8 else status):
            return None
        self._mark(regset)
        return found

    def _mark(self, regset: Regset) -> None:
        """Let the kernel forget the call's number, so that the next stop does not find the same call again.

        A thread that had no processor since the last stop stands where it stood. Only the restart of a call needs the
        number, and this one has a result. Nothing else depends on it, so that we may be killed before and after.
        """
        number = regset.leave_call()
        self._ptrace.write_registers(self._tid, regset.arch.kernel.regset_size)
        regset.put_call(number)

    def after_release(self, tid: int, found: ShortCall | None) -> bool:
        """Has the stop cut a call short? Then it is counted."""
        if found is None or by_itself(found, tid):
            return False
        self._diagnostics.count(f"system call of the target cut short by a stop: {found.name}")
        return True

    def _restart(self, status: int, regset: Regset) -> None:
        """Undo the EINTR of a call in which the thread fell asleep between our look and our interrupt.

        Only where that is the same as if nothing had been: the call is one that returns EINTR before it has done
        anything, no signal is about to be handled (else the EINTR is the signal's), and the bytes before pc are the
        syscall instruction. A signal that comes between the last look and the DETACH is handled as if it had come
        just before the call. Where the first argument and the result share a register the kernel does not give the
        argument back (ARM, AArch64), so that nothing can be undone; there the register set does not show the call.
        """
        arch, number, tid = regset.arch, regset.call, self._tid
        if number < 0 or status != _INTERRUPT_STOP or signal_due(tid):
            return
        pc, code = regset.pc, arch.kernel.syscall_codes[0]
        done = restartable(arch, number, regset.args) and self.read(pc - len(code), len(code)) == code
        if done:
            regset.begin_again(number, len(code))
            done = self._ptrace.write_registers(tid, arch.kernel.regset_size) == 0
            regset.put_back(-EINTR & arch.mask, pc)
            if done and signal_due(tid):
                self._ptrace.write_registers(tid, arch.kernel.regset_size)
                return
        self._diagnostics.count(RESTARTED if done else INTERRUPTED)

    def read(self, avma: int, size: int) -> bytes:
        """Memory of the thread, b"" if it is not there."""
        if not 0 < size <= self._memory.size or not 0 <= avma < 1 << 64:
            return b""
        got = self._ptrace.read_memory(self._tid, avma, size, self._memory.address)
        return bytes(self._memory.data[:size]) if got == size else b""
