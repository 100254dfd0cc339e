"""Control of a running collector by its recording: flushes at the ends of windows, the end, and sparser sampling.

The owner of the windows requests a flush at a time. The collector yields all samples from before that time and none
from after it, and then acknowledges the flush. A collector that is late makes a window late, but never puts a sample or
a part of a wait into another window. All times are those of the monotonic clock, in nanoseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

NEVER_NS = 1 << 62
_MIN_LAST_WINDOW = 0.1
"""Minimum length of a recording's last window as a fraction of the usual length. A shorter rest is added to the window
before.
"""


class FlushProtocol:
    """The flush requests of one recording to its collector, and their acknowledgements.

    Attributes:
        wake: Called from any thread or a signal handler after a request. A collector that sleeps for long sets it.
        given_ns: Time up to which the collector has yielded all samples.
        begun_ns: Beginning of the recording, 0 before it.
        ended_ns: Time of the request to end the recording, 0 before it.
        limit_ns: Time at which the recording ends by itself. A later request to end it has this time.
        on_begin: Called when the recording begins.
        on_window_end: Called from any thread at the end of the recording or of a window, or soon after it.
        samples_when_open: True if the collector takes samples before the first batch is requested.
        on_sampling: Called in the collector's thread when the first samples may be taken.
        steps: Number of processes that the collector has read or checked. While it grows, a late collector is not
            abandoned.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.given_ns = self.begun_ns = self.ended_ns = 0
        self.limit_ns = NEVER_NS
        self.on_begin: Callable[[], None] = lambda: None
        self.on_window_end: Callable[[], None] = lambda: None
        self.samples_when_open = False
        self.on_sampling: Callable[[], None] = lambda: None
        self.steps = 0
        self._is_sampling = False
        self._wanted: tuple[int, ...] = ()
        self._every_ns = NEVER_NS
        self._lock = threading.RLock()  # reentrant, because a signal handler may interrupt a holder

    def begin(self) -> None:
        """Set the beginning of the recording to the current time, unless the recording has begun. Earlier samples do
        not belong to it.
        """
        if not self.begun_ns:
            self.given_ns = self.begun_ns = time.monotonic_ns()
            self.on_begin()

    def end(self) -> int:
        """Set the end of the recording to the current time and return it, unless the end is set already or its limit
        has passed. A signal handler may call this.
        """
        with self._lock:
            is_first = not self.ended_ns
            self.ended_ns = self.ended_ns or min(time.monotonic_ns(), self.limit_ns)
        if is_first:
            self.on_window_end()
        return self.ended_ns

    def report_sampling(self) -> None:
        """Report that the collector takes samples from now on. Only the collector's thread may call this; later calls
        have no effect.
        """
        if not self._is_sampling:
            self._is_sampling = True
            self.on_sampling()

    def request_flush(self, at_ns: int) -> None:
        """Request that the collector yields all samples up to a time (a flush). May be called from any thread or a
        signal handler.
        """
        with self._lock:
            self._wanted = (*self._wanted, at_ns)
        self.wake()
        self.on_window_end()

    def flush_every(self, every_ns: int) -> None:
        """Request a flush of samples at this interval from now on. May be called from any thread."""
        with self._lock:
            self._every_ns = min(self._every_ns, every_ns)
        self.wake()

    @property
    def is_watched(self) -> bool:
        """True if samples are flushed at a regular interval (see flush_every())."""
        return self._every_ns < NEVER_NS

    @property
    def next_ns(self) -> int:
        """The time of the next flush, in nanoseconds of the monotonic clock. Only the collector reads this."""
        return min(*self._wanted, self.given_ns + self._every_ns, self.limit_ns)

    def bound(self, now_ns: int) -> int:
        """Return the time up to which the collector may yield samples: the first requested flush, the end of the
        recording, or now_ns, whichever comes first. Only the collector calls this.
        """
        return max(min(*self._wanted, now_ns, self.limit_ns), self.given_ns)

    def ends_window(self, until_ns: int) -> bool:
        """Return True if the collector's samples up to a time complete a window, because a flush was requested for that
        or an earlier time. Only the collector calls this.
        """
        return min(NEVER_NS, *self._wanted, NEVER_NS) <= until_ns

    def acknowledge_flush(self, until_ns: int) -> bool:
        """Acknowledge that all samples before a time were yielded, and none after it. Only the collector calls this.

        Returns:
            True if the owner waits for this. The collector then yields an empty batch at once.
        """
        with self._lock:
            before = self._wanted
            self._wanted = tuple(at for at in before if at > until_ns)
            self.given_ns = max(self.given_ns, until_ns)
            return len(self._wanted) < len(before)

    def is_end_near(self, at_ns: int, every_ns: int) -> bool:
        """Return True if the recording has ended before the planned end of a window, or so shortly after it that no
        further window is worthwhile.

        Args:
            at_ns: Planned end of the window.
            every_ns: Usual length of a window.
        """
        return bool(self.ended_ns) and self.ended_ns < at_ns + _MIN_LAST_WINDOW * every_ns

    def is_ready(self, at_ns: int) -> bool:
        """Return True if all samples of the window that ends at this time were yielded."""
        return self.given_ns >= at_ns


class Stride:
    """A factor by which all collectors of a recording take fewer samples than their rate says, to save processor time.

    Any thread that enforces a budget may change it. Collectors read it before each use.

    Attributes:
        every: Only one of this many sampling times is used, and its samples stand for all of them.
    """

    def __init__(self) -> None:
        self.every = 1
