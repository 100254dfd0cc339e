"""A thread that handles signals such as Ctrl-C, because the main thread may be blocked.

A memory page of a target that never arrives, or a file in its file system, blocks the reader in a system call that only
SIGKILL ends. Python runs signal handlers in the main thread, and the kernel prefers that thread too. Therefore signals
are blocked in the main thread, and this thread reads what the C signal handler writes into a pipe.
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
"""Interval in seconds in which repeated signals count as one: timeout(1) signals a process, then its group."""


class EndBySignals:
    """A handler of signals that ends a command. The first signal calls `ask`, which requests the end. A later one calls
    `leave`, which exits at once.

    `leave` is also called `most_s` seconds after the first signal.
    """

    def __init__(self, ask: Callable[[], None], leave: Callable[[], None], most_s: float | None = None) -> None:
        """Create a handler of signals that ends a command. Both callbacks run in a thread that is not the main one, and
        `leave` must end this process.
        """
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


def listen(handle: Callable[[int], None], more: Sequence[signal.Signals] = ()) -> None:
    """Call handle(number) in a separate thread for each signal that arrives from now on. A SIGHUP that nohup(1) ignores
    stays ignored.

    Signals that were blocked and are pending are included. SIGUSR1 keeps its default effect unless it is in `more`.

    Args:
        more: Signals in addition to NUMBERS.
    """
    read_without_gil()
    numbers = [n for n in (*NUMBERS, *more) if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    source, sink = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(sink, False)
    signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, _nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*numbers, signal.SIGUSR1))
    threading.Thread(target=_read, args=(source, numbers, handle), name="pyprof signals", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _nothing(number: int, _: object) -> None:
    """Ignore a signal. Python's C handler writes the signal's number into a pipe, and another thread reads it."""


def _read(source: int, numbers: list[signal.Signals], taken: Callable[[int], None]) -> None:
    while data := os.read(source, 64):
        for number in data:
            if number in numbers:
                taken(number)
