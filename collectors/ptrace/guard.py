"""Nothing of ours may come between a stop and its DETACH: signals wait, the garbage collector is off."""

from __future__ import annotations

import gc
import signal
import threading

from pyprof.collectors.linux.libc import PtraceCalls


class StopGuard:
    """Holds from enter() to leave(); for the one thread that is the tracer."""

    def __init__(self, ptrace: PtraceCalls) -> None:
        self._ptrace = ptrace
        self._entered = False
        self._gc = True
        self._old_sigchld: object = None

    def hear_sigchld(self) -> None:
        """A kernel that may drop SIGCHLD does not report stops."""
        ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if ignored and threading.current_thread() is threading.main_thread():
            self._old_sigchld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def enter(self) -> None:
        """Called inside the try of leave()."""
        self._gc = gc.isenabled()
        self._entered = True
        self._ptrace.block_signals()
        gc.disable()

    def leave(self) -> None:
        """An exception of a signal handler may come as soon as signals are let in; earlier only where another thread
        of the process took the signal. Then close() does what is left.
        """
        if self._entered:
            if self._gc:
                gc.enable()
            self._ptrace.restore_signals()
            self._entered = False

    def close(self) -> None:
        """Signals are as they were. In the thread that entered."""
        self.leave()
        if self._old_sigchld is not None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            self._old_sigchld = None
