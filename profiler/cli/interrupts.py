"""Signals such as Ctrl-C are taken by a thread of their own: the main thread may be where no signal is seen.

A page of a target's memory that never comes, or a file of its file system, holds whoever reads it in a call that only
SIGKILL ends. Handlers of Python run in the main thread, and the kernel prefers it, too. So the signals are blocked
there, and what the kernel's handler writes into a pipe is read here.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from pyprof.collectors.linux.libc import read_without_gil

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 0.05
"""Signals that come so soon after the first are the same request: timeout(1) signals a process, then its group."""


class EndBySignals:
    """What signals do that end a command, for listen(). The first one asks it to end; a later one leaves it wherever it
    is, and so does the time most_s.
    """

    def __init__(self, ask: Callable[[], None], leave: Callable[[], None], most_s: float | None = None) -> None:
        """leave: must end this process. Both are called in a thread that is not the main one."""
        self._ask, self._leave, self._most_s = ask, leave, most_s
        self.asked_at = 0.0

    def __call__(self, _: int) -> None:
        now = time.monotonic()
        if not self.asked_at:
            self.asked_at = now
            if self._most_s is not None:
                timer = threading.Timer(self._most_s, self._leave)
                timer.daemon = True
                timer.start()
            self._ask()
        elif now > self.asked_at + SAME_S:
            self._leave()


def listen(taken: Callable[[int], None], more: Sequence[signal.Signals] = ()) -> None:
    """Call taken(number) in a thread from now on, for one signal after the other. nohup is obeyed.

    Signals that were blocked until now and have come are taken, too. SIGUSR1 has its usual effect unless it is in more.

    Args:
        more: Signals besides NUMBERS.
    """
    read_without_gil()
    numbers = [n for n in (*NUMBERS, *more) if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    source, sink = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(sink, False)
    signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, _nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*numbers, signal.SIGUSR1))
    threading.Thread(target=_read, args=(source, numbers, taken), name="pyprof signals", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _nothing(number: int, _: object) -> None:
    """The byte in the pipe is what counts."""


def _read(source: int, numbers: list[signal.Signals], taken: Callable[[int], None]) -> None:
    while data := os.read(source, 64):
        for number in data:
            if number in numbers:
                taken(number)
