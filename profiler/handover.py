"""The flush protocol between the owner of a recording's windows and its collector.

The owner requests a flush at a time. The collector yields all samples of before that time and none of after it, and
then acknowledges it. A collector that is late makes a window late, but never puts a sample or a part of a wait into
another window. All times are those of the monotonic clock, in nanoseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

NEVER_NS = 1 << 62


class Handover:
    """The flushes of one recording.

    wake is called from any thread, or a signal handler, when a flush was requested; a collector that sleeps for long
    sets it. given_ns is the time up to which all samples were yielded. begun_ns is when the recording began, ended_ns
    when it was told to end; each is 0 before that. on_sampling is called in the collector's thread when the first
    samples may be taken.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.given_ns = self.begun_ns = self.ended_ns = 0
        self.on_sampling: Callable[[], None] = lambda: None
        self._is_sampling = False
        self._wanted: tuple[int, ...] = ()
        self._every_ns = NEVER_NS
        self._lock = threading.RLock()  # a handler may come inside

    def begin(self) -> None:
        """Start the recording now: nothing before belongs to it."""
        self.given_ns = self.begun_ns = time.monotonic_ns()

    def end(self) -> int:
        """Set the end of the recording to now, unless it is set, and return it. Callable from a signal handler."""
        with self._lock:
            self.ended_ns = self.ended_ns or time.monotonic_ns()
        return self.ended_ns

    def report_sampling(self) -> None:
        """Report that samples are taken from now on. Only for the collector's thread; only the first call counts."""
        if not self._is_sampling:
            self._is_sampling = True
            self.on_sampling()

    def want(self, at_ns: int) -> None:
        """Request a flush at a time. Callable from any thread, or a signal handler."""
        with self._lock:
            self._wanted = (*self._wanted, at_ns)
        self.wake()

    def often(self, every_ns: int) -> None:
        """Request a flush this often from now on. Callable from any thread."""
        with self._lock:
            self._every_ns = min(self._every_ns, every_ns)
        self.wake()

    @property
    def is_watched(self) -> bool:
        """Whether flushes are requested again and again."""
        return self._every_ns < NEVER_NS

    @property
    def next_ns(self) -> int:
        """The time of the next flush. Only for the collector."""
        return min(*self._wanted, self.given_ns + self._every_ns, NEVER_NS)

    def bound(self, now_ns: int) -> int:
        """Return the time up to which the collector may yield samples now. Only for the collector."""
        return max(min(*self._wanted, now_ns, NEVER_NS), self.given_ns)

    def ends_window(self, until_ns: int) -> bool:
        """Return True if a flush was requested at this time or before. Only for the collector."""
        return min(NEVER_NS, *self._wanted, NEVER_NS) <= until_ns

    def gave(self, until_ns: int) -> bool:
        """Acknowledge that all samples of before a time were yielded, and none of after it. Only for the collector.

        Returns:
            True if the owner waits for this: the collector yields one more batch at once, an empty one, before all
            others.
        """
        with self._lock:
            before = self._wanted
            self._wanted = tuple(at for at in before if at > until_ns)
            self.given_ns = max(self.given_ns, until_ns)
            return len(self._wanted) < len(before)

    def is_ready(self, at_ns: int) -> bool:
        """Return True if a window that ends at this time can be closed: it ends at given_ns."""
        return self.given_ns >= at_ns


class Stride:
    """Of one recording. every: of so many sampling times one is used, and its samples stand for all of them. May be set
    from any thread, by whoever keeps a budget; collectors read it before each use.
    """

    def __init__(self) -> None:
        self.every = 1
