"""The waits of a collector between two readings of its rings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from pyprof.collectors.perf.cpu_events import MappingAlarm
from pyprof.collectors.perf.event_set import RingReader
from pyprof.collectors.perf.events import PerfNotAllowed
from pyprof.collectors.perf.process_set import ProcessSet
from pyprof.collectors.perf.waiter import Waiter, WatchTimes
from pyprof.options import CollectOptions


class RecordWait:
    """A wait for records of the kernel, ends of processes, flushes, and the next check for programs.

    Attributes:
        waiter: The descriptors that end a wait.
        watch: Function that checks the programs of the recording. It returns the time until its next call in ns, or
            None if another collector is to take over.
        look: Function to call after each period of sampling (see Feedback.look), None if there is none.
    """

    def __init__(self, options: CollectOptions, members: ProcessSet, wakes: bool) -> None:
        """Create a wait of a recording that has not begun.

        Args:
            options: Options of the recording.
            members: The processes of the recording.
            wakes: True if the kernel wakes the collector when records arrive.
        """
        self.waiter = Waiter()
        self.watch: Callable[[], int | None] | None = None
        self.look: Callable[[], None] | None = None
        self._options = options
        self._members = members
        self._wakes = wakes
        self._watch_times = WatchTimes(options, wakes)
        self._alarm: MappingAlarm | None = None

    def open_alarm(self, reader: RingReader) -> None:
        """Let the kernel report new code if `watch` must learn of it soon, so that the rings need not be polled."""
        if self.watch is None or self._wakes or self._alarm is not None:
            return
        with contextlib.suppress(PerfNotAllowed):
            self._alarm = MappingAlarm(reader.rings.owners)
            self.waiter.add_alarms(self._alarm.fds)
            self._watch_times = WatchTimes(self._options, wakes=True)

    def wait_until(self, due_ns: int, is_over: Callable[[], bool], change_rates: Callable[[], float]) -> None:
        """Wait until a time, a flush, the end of the recording's last process or a wakeup by a ring buffer.

        Args:
            due_ns: The time.
            is_over: Returns True if the wait must end.
            change_rates: Changes the rates of events that are due, and returns the time until the next change in ns.
        """
        while not is_over():
            left = min(due_ns, self._options.handover.next_ns) - time.monotonic_ns()
            if left <= 0:
                break
            if self.look is not None:
                self.look()
                left = min(left, round(1e9 / self._options.rate_hz))
            if self.watch is not None:
                until_ns = self._check_programs(self.watch)
                if until_ns is None:
                    break
                left = min(left, until_ns)
            self.note_ends(min(left, change_rates()))
            if not self._members.has_processes_left:
                break

    def _check_programs(self, watch: Callable[[], int | None]) -> int | None:
        """Call the `watch` function if it is due. Return the time until its next call in ns, or None if another
        collector takes over.
        """
        now, notified = time.monotonic_ns(), self.waiter.notified
        if self._watch_times.is_due(now, notified):
            self.waiter.clear_notice()
            again_ns = watch()
            if again_ns is None:
                return None
            notified = False
            self._watch_times.note_watch(now, again_ns, self._members.has_new_processes)
        return self._watch_times.left_ns(now, notified)

    def note_ends(self, wait_ns: float = 0) -> None:
        """Note the processes that have ended, after a wait of at most this time."""
        tracked = self._members.tracked
        for fd in self.waiter.wait(wait_ns, tracked.alive.values()):
            tracked.note_end(fd)

    def close(self) -> None:
        try:
            if self._alarm is not None:
                self._alarm.close()
        finally:
            self.waiter.close()
