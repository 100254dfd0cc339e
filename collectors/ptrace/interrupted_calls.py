"""The effect of a stop on a thread's system call: undone if possible, else counted.

prepare_release() is called while the thread is stopped. It saves what is visible only then, and raises no exception.
"""

from __future__ import annotations

import signal

from pyprof.collectors.linux import libc
from pyprof.collectors.linux.cut_short_calls import ShortCall, can_end_by_itself, parse_short_call
from pyprof.collectors.linux.procfs import has_pending_handler, has_pending_signal
from pyprof.collectors.linux.regset import Regset
from pyprof.collectors.linux.syscalls import EINTR, can_restart
from pyprof.diagnostics import Diagnostics

RESTARTED = "system_call_restarted"
INTERRUPTED = "system_call_interrupted"

_MEMORY = 32 << 10
"""Size in bytes of the buffer for a system call's arguments: two arrays of the maximum number of struct iovec."""
_INTERRUPT_STOP = signal.SIGTRAP | libc.PTRACE_EVENT_STOP << 8


class InterruptedCalls:
    """The check of the system call that a stop has interrupted, for one stopped thread at a time."""

    def __init__(self, ptrace: libc.PtraceCalls, diagnostics: Diagnostics) -> None:
        self._ptrace = ptrace
        self._diagnostics = diagnostics
        self._memory = libc.Arena(_MEMORY)
        self._tid = 0

    def prepare_release(self, tid: int, status: int, regset: Regset) -> ShortCall | None:
        """Undo the interruption of a system call if possible, before the stopped thread is released.

        Args:
            tid: The thread.
            status: Wait status of the stop.
            regset: The thread's registers.

        Returns:
            A system call that the stop may have cut short, for check_release().
        """
        self._tid = tid
        if regset.interrupted:
            self._restart(status, regset)
            return None
        number, result = regset.call, regset.result
        if number < 0 or result < 0:
            return None
        found = parse_short_call(regset.arch, tid, number, regset.args, result, self.read)
        if found is None or (status >> 8 and status != _INTERRUPT_STOP):  # a SIGSTOP would also have cut it
            return None
        if regset.restarts(self.read) or has_pending_handler(tid, 0 if status >> 8 else status):
            return None
        self._mark(regset)
        return found

    def _mark(self, regset: Regset) -> None:
        """Clear the system call's number in the kernel, so that the next stop does not find the same call again.

        A thread that had no processor since the last stop is still at the same place. Only a restart needs the number,
        and this call already has a result. Nothing else depends on it, so the profiler may be killed before or after.
        """
        number = regset.leave_call()
        self._ptrace.write_registers(self._tid, regset.arch.kernel.regset_size)
        regset.put_call(number)

    def check_release(self, tid: int, found: ShortCall | None) -> bool:
        """Return True if the stop has cut the thread's system call short, and count it."""
        if found is None or can_end_by_itself(found, tid):
            return False
        self._diagnostics.count(f"system_call_cut_short:{found.name}")
        return True

    def _restart(self, status: int, regset: Regset) -> None:
        """Undo the EINTR of a system call in which the thread fell asleep between the check and the interrupt.

        This is done only if the effect is as if there had been no stop. The call must return EINTR before it has any
        effect. No signal may be about to be handled, else the EINTR is the signal's. The bytes before pc must be the
        syscall instruction. A signal that arrives between the last check and the DETACH is handled as if it had arrived
        just before the call. If the first argument and the result share a register (ARM, AArch64), the kernel does not
        restore the argument. Then nothing can be undone; the register set does not show the call there.
        """
        arch, number, tid = regset.arch, regset.call, self._tid
        if number < 0 or status != _INTERRUPT_STOP or has_pending_signal(tid):
            return
        pc, code = regset.pc, arch.kernel.syscall_codes[0]
        done = can_restart(arch, number, regset.args) and self.read(pc - len(code), len(code)) == code
        if done:
            regset.begin_again(number, len(code))
            done = self._ptrace.write_registers(tid, arch.kernel.regset_size) == 0
            regset.put_back(-EINTR & arch.mask, pc)
            if done and has_pending_signal(tid):
                self._ptrace.write_registers(tid, arch.kernel.regset_size)
                return
        self._diagnostics.count(RESTARTED if done else INTERRUPTED)

    def read(self, avma: int, size: int) -> bytes:
        """Read memory of the stopped thread. Return b"" if it is not readable."""
        if not 0 < size <= self._memory.size or not 0 <= avma < 1 << 64:
            return b""
        got = self._ptrace.read_memory(self._tid, avma, size, self._memory.address)
        return bytes(self._memory.data[:size]) if got == size else b""
