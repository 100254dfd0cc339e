"""Waits for processes to end, or to be woken; and how long samples may wait in the rings."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable

from pyprof.collectors.perf.copy_size import HOLD
from pyprof.options import CollectOptions

FIRST_FLUSH_NS = 20_000_000

_TRIAL_NS, _LONG_TRIAL_NS = 1_000_000, 10_000_000
_BATCH = 2000


class Waiter:
    """Of one thread. wake() may be called from a signal handler, and by others."""

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._watched: set[int] = set()
        self._closed = False

    def wait(self, ns: float, pidfds: Iterable[int]) -> list[int]:
        """Until one of the processes ends; the pidfds of those that have."""
        for fd in pidfds:
            if fd not in self._watched:
                self._watched.add(fd)
                self._poll.register(fd, select.POLLIN)
        ended = [fd for fd, _ in self._poll.poll(ns / 1e6) if fd != self._wake]
        for fd in ended:
            self._poll.unregister(fd)
            self._watched.discard(fd)
        return ended

    def wake(self) -> None:
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._wake)


class Cadence:
    """wait_ns: how long samples may wait in the rings for others, now. Short at first, so that learning begins."""

    def __init__(self, options: CollectOptions, trial: bool) -> None:
        """trial: the first samples are handled apart from all others."""
        self.flush_ns = round(options.flush_s * 1e9)
        # a batch costs much of its time for being a batch
        self._full_batch_ns = round(1e9 * min(_BATCH / options.rate_hz, HOLD * options.flush_s))
        self.wait_ns = _TRIAL_NS if trial else FIRST_FLUSH_NS

    def tried(self, again: bool) -> None:
        """A trial is over. again: there was nothing in it."""
        self.wait_ns = min(2 * self.wait_ns, _LONG_TRIAL_NS) if again else FIRST_FLUSH_NS

    def flushed(self) -> None:
        """All that there was has been yielded."""
        self.wait_ns = max(min(2 * self.wait_ns, self._full_batch_ns), min(self.flush_ns, 2 * self.wait_ns))
