"""When all samples so far are wanted: a window is to be closed, and collectors keep samples for a while.

Who closes windows says when, the collector yields then what it has, and says until when that is all. Who closes waits
for that, but not for ever: a collector may take samples that it cannot yield yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

NEVER_NS = 1 << 62
PATIENCE_NS = 1_000_000_000
"""A window is closed so long after its time, whatever the collector says."""


class Handover:
    """Of one recording. Times are monotonic ns. wake: called from any thread, or a signal handler, where a time is
    new; a collector that sleeps for long sets it.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._wanted: tuple[int, ...] = ()
        self._every_ns = NEVER_NS
        self._given_ns = 0
        self._lock = threading.RLock()  # a handler may come inside

    def want(self, at_ns: int) -> None:
        """All samples until then, as soon as it is then. From any thread, or a signal handler."""
        with self._lock:
            self._wanted = (*self._wanted, at_ns)
        self.wake()

    def often(self, every_ns: int) -> None:
        """All samples so far, so often from now on: somebody looks at them, or keeps them. From any thread."""
        with self._lock:
            self._every_ns = min(self._every_ns, every_ns)
        self.wake()

    @property
    def is_watched(self) -> bool:
        """Are all samples so far wanted again and again?"""
        return self._every_ns < NEVER_NS

    @property
    def next_ns(self) -> int:
        """When samples are wanted the next time. Only for the collector."""
        return min(*self._wanted, self._given_ns + self._every_ns, NEVER_NS)

    def gave(self, until_ns: int) -> bool:
        """All samples until then were yielded. Only for the collector. True: one more batch, be it empty, is to be
        yielded at once, for somebody waits for these.
        """
        with self._lock:
            before = self._wanted
            self._wanted = tuple(at for at in before if at > until_ns)
            self._given_ns = max(self._given_ns, until_ns)
            return len(self._wanted) < len(before)

    def is_ready(self, at_ns: int, now_ns: int) -> bool:
        """May the window that ends at a time be closed?"""
        return self._given_ns >= at_ns or now_ns >= at_ns + PATIENCE_NS


class Stride:
    """Of one recording. every: of so many sampling times one is used, and its samples stand for all of them. May be set
    from any thread, by whoever keeps a budget; collectors read it before each use.
    """

    def __init__(self) -> None:
        self.every = 1
