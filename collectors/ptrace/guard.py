"""Protection of the time between a stop and its DETACH: signals wait, and the garbage collector is off."""

from __future__ import annotations

import gc
import signal
import threading

from pyprof.collectors.linux.libc import PtraceCalls


class StopGuard:
    """A guard from enter() to leave(), for the thread that is the tracer."""

    def __init__(self, ptrace: PtraceCalls) -> None:
        self._ptrace = ptrace
        self._entered = False
        self._gc = True
        self._old_sigchld: object = None

    def enable_sigchld(self) -> None:
        """Restore the default action of SIGCHLD if it is ignored, because the kernel may then not report stops."""
        ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if ignored and threading.current_thread() is threading.main_thread():
            self._old_sigchld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def enter(self) -> None:
        """Block signals and the garbage collector. The caller calls it inside the try block whose finally calls
        leave().
        """
        self._gc = gc.isenabled()
        self._entered = True
        self._ptrace.block_signals()
        gc.disable()

    def leave(self) -> None:
        """Allow signals and garbage collection again.

        A signal handler may raise an exception as soon as signals are allowed. It may do so earlier only if another
        thread of the process received the signal. Then close() does the rest.
        """
        if self._entered:
            if self._gc:
                gc.enable()
            self._ptrace.restore_signals()
            self._entered = False

    def close(self) -> None:
        """Restore the signals, in the thread that called enter()."""
        self.leave()
        if self._old_sigchld is not None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            self._old_sigchld = None
