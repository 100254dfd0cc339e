"""Waits for processes to end, or to be woken; and how long samples may wait in the rings."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable

from pyprof.collectors.perf.copy_size import BATCH
from pyprof.options import HOLD, CollectOptions

FIRST_FLUSH_NS = 20_000_000

_WATCH_NS, _WATCHES = 10_000_000, 50
"""News are looked at no more often; nor more often than so many times while samples may wait. Programs that begin all
the time would wake us each time.
"""
_CALM_NS = 2_000_000_000
"""A program that begins maps its files one after the other: after news we look again, later and later, up to so long
after the last look.
"""

_TRIAL_NS, _LONG_TRIAL_NS = 1_000_000, 10_000_000
_FEW = 400
"""Samples of a processor. More of them cost no less each for being more."""
_HAND_OUT_NS = 200_000_000
"""Processor time that a batch may take, about: who ends a recording waits for the last one."""


class Waiter:
    """Of one thread. wake() may be called from a signal handler, and by others. notified: a ring says that there is
    news; set back by whoever looks at them.
    """

    def __init__(self) -> None:
        self.notified = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        self._watched: set[int] = set()
        self._ring = -1
        self._rings: set[int] = set()
        self._closed = False
        self._lock = threading.RLock()  # a handler may come inside

    def of_rings(self, ring: int, others: Iterable[int]) -> None:
        """Descriptors of rings whose writers wake us: ring where it is full and where there is news, others where they
        are full.
        """
        self._ring = ring
        self._rings = {ring}
        self._poll.register(ring, select.EPOLLIN | select.EPOLLET)
        self.also_of(others)

    def also_of(self, others: Iterable[int]) -> None:
        """Further rings; those that are known stay as they are."""
        for fd in set(others) - self._rings:
            self._rings.add(fd)
            self._poll.register(fd, select.EPOLLIN | select.EPOLLET)

    def wait(self, ns: float, pidfds: Iterable[int]) -> list[int]:
        """Until one of the processes ends, or we are woken; the pidfds of those that have ended."""
        for fd in pidfds:
            if fd not in self._watched:
                self._watched.add(fd)
                self._poll.register(fd, select.EPOLLIN)
        ended = []
        for fd, _ in self._poll.poll(max(ns, 0) / 1e9):
            self.notified |= fd == self._ring
            if fd == self._wake:
                os.eventfd_read(fd)  # or each later wait would return at once
            if fd in self._watched:
                ended.append(fd)
        for fd in ended:
            self._poll.unregister(fd)
            self._watched.discard(fd)
        return ended

    def wake(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._poll.close()
                os.close(self._wake)


class WatchTimes:
    """When news are looked at: where they wake us as soon as there are some, else again and again."""

    def __init__(self, options: CollectOptions, wakes: bool) -> None:
        """wakes: news do."""
        self._wakes = wakes
        self._each_ns = max(_WATCH_NS, round(1e9 * options.flush_s / _WATCHES))
        self._soonest_ns = self._due_ns = 0
        self._calm_ns = self._each_ns

    def due(self, now_ns: int, notified: bool) -> bool:
        return self.left_ns(now_ns, notified) == 0

    def watched(self, now_ns: int, again_ns: int, found: bool) -> None:
        """again_ns: until the next look, if there is no news. found: there was some."""
        self._soonest_ns = now_ns + self._each_ns
        self._calm_ns = self._each_ns if found else 2 * self._calm_ns
        if not self._wakes:
            self._due_ns = self._soonest_ns
        elif self._calm_ns <= _CALM_NS:
            self._due_ns = now_ns + min(again_ns, self._calm_ns)
        else:
            self._due_ns = now_ns + again_ns

    def left_ns(self, now_ns: int, notified: bool) -> int:
        """Until the next look. notified: we were woken for news."""
        return max((self._soonest_ns if notified else self._due_ns) - now_ns, 0)


class Cadence:
    """wait_ns: how long samples may wait in the rings for others, now. Short at first, so that learning begins."""

    def __init__(self, options: CollectOptions, trial: bool, hold_s: float = 0.0) -> None:
        """trial: the first samples are handled apart from all others. hold_s: they wait up to twice HOLD times flush_s
        for others, where they are few up to four times that, if it is no longer.
        """
        self.flush_ns = round(options.flush_s * 1e9)
        # a batch costs much of its time for being a batch
        usual_s = HOLD * options.flush_s
        long_s = max(2 * usual_s, min(4 * usual_s, _FEW / options.rate_hz))
        self._full_batch_ns = round(1e9 * min(BATCH / options.rate_hz, max(usual_s, min(long_s, hold_s))))
        self.wait_ns = _TRIAL_NS if trial else FIRST_FLUSH_NS

    def tried(self, again: bool) -> None:
        """A trial is over. again: there was nothing in it."""
        self.wait_ns = min(2 * self.wait_ns, _LONG_TRIAL_NS) if again else FIRST_FLUSH_NS

    def flushed(self, took_ns: int) -> None:
        """All that there was has been yielded, in so much processor time: on a slow machine batches are shorter."""
        most_ns = min(self._full_batch_ns, self.wait_ns * _HAND_OUT_NS // max(took_ns, 1))
        self.wait_ns = max(min(2 * self.wait_ns, most_ns), min(self.flush_ns, 2 * self.wait_ns))
