"""Waits for records, for the end of processes or for a wakeup, and the maximum time that samples may wait in
the rings.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterable

from pyprof.collectors.perf.cpu_wide_events import MappingAlarm
from pyprof.collectors.perf.event_attributes import PerfNotAllowed
from pyprof.collectors.perf.per_thread_events import RingReader
from pyprof.collectors.perf.process_set import ProcessSet
from pyprof.collectors.perf.stack_copy_size import BATCH
from pyprof.options import HOLD, CollectOptions

FIRST_FLUSH_NS = 20_000_000

_ONCE = select.EPOLLIN | select.EPOLLONESHOT
"""Flags of epoll(7) for descriptors that report only once. Programs of the machine may start all the time,
and each would wake the collector.
"""

_WATCH_NS, _WATCHES = 10_000_000, 50
"""Minimum time in ns between two checks for new processes, and maximum number of checks while samples wait
for a flush.

Programs that start all the time would otherwise wake the collector each time.
"""
_MAX_WATCH_FACTOR = 4
"""Maximum factor by which the time between checks for new processes grows if checks find nothing. Programs of
other users may start all the time, too.
"""
_CALM_NS = 2_000_000_000
"""Maximum time in nanoseconds between repeated checks for new processes after one was found.

A starting program maps its files one after the other, so the checks are repeated at growing intervals.
"""

_FEW = 400
"""Number of samples of a processor in a batch, above which a larger batch does not reduce the cost of a sample."""
_RESTART_SAMPLES = 4
"""Minimum number of sampling periods for which samples wait after Cadence.restart()."""
_HAND_OUT_NS = 200_000_000
"""Approximate processor time in ns that a batch may take. The end of a recording waits for the last batch."""


class Waiter:
    """A wait by epoll(7) for pidfds, ring buffers and a wakeup descriptor. One thread waits.

    wake() may be called from a signal handler and from other threads.

    Attributes:
        notified: True after a ring or an alarm has reported new processes, until clear_notice().
    """

    def __init__(self) -> None:
        self.notified = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        self._watched: set[int] = set()
        self._ring = -1
        self._rings: set[int] = set()
        self._alarms: tuple[int, ...] = ()
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may interrupt the owner of the lock

    def for_rings(self, ring: int, others: Iterable[int]) -> None:
        """Register the perf rings whose records wake this waiter.

        Args:
            ring: Descriptor of the ring that reports new processes, and wakes when it is full.
            others: Descriptors of rings that only wake when they are full.
        """
        self._ring = ring
        self._rings = {ring}
        self._poll.register(ring, select.EPOLLIN | select.EPOLLET)
        self.add_rings(others)

    def add_rings(self, others: Iterable[int]) -> None:
        """Let records in these ring buffers end a wait, too."""
        for fd in set(others) - self._rings:
            self._rings.add(fd)
            self._poll.register(fd, select.EPOLLIN | select.EPOLLET)

    def add_alarms(self, fds: Iterable[int]) -> None:
        """Let these descriptors of a MappingAlarm end a wait, too. Each reports only once until
        clear_notice() is called.
        """
        self._alarms = tuple(fds)
        for fd in self._alarms:
            self._poll.register(fd, _ONCE)

    def clear_notice(self) -> None:
        """Allow further reports of new processes, because the caller now handles those that were reported."""
        if self.notified:
            self.notified = False
            for fd in self._alarms:
                self._poll.modify(fd, _ONCE)

    def wait(self, ns: float, pidfds: Iterable[int]) -> list[int]:
        """Wait until a process ends or a wakeup arrives, and return the pidfds of ended processes.

        Args:
            ns: Maximum duration in nanoseconds.
            pidfds: Descriptors of the processes (pidfd_open(2)).
        """
        for fd in pidfds:
            if fd not in self._watched:
                self._watched.add(fd)
                self._poll.register(fd, select.EPOLLIN)
        ended = []
        for fd, _ in self._poll.poll(max(ns, 0) / 1e9):
            self.notified |= fd == self._ring or fd in self._alarms
            if fd == self._wake:
                os.eventfd_read(fd)  # otherwise each later wait would return at once
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
    """The times of checks for new processes. They follow soon after a wakeup if the kernel sends wakeups for
    new processes; else they are periodic.
    """

    def __init__(self, options: CollectOptions, wakes: bool) -> None:
        """Make the first check for new processes due at once. `wakes` is True if the kernel sends wakeups for
        new processes.
        """
        self._wakes = wakes
        self._each_ns = max(_WATCH_NS, round(1e9 * options.flush_s / _WATCHES))
        self._soonest_ns = self._due_ns = 0
        self._calm_ns = self._gap_ns = self._each_ns

    def is_due(self, now_ns: int, notified: bool) -> bool:
        return self.left_ns(now_ns, notified) == 0

    def note_watch(self, now_ns: int, again_ns: int, found: bool) -> None:
        """Note that a check for new processes was made, and choose the time of the next one.

        Args:
            now_ns: Time of the check.
            again_ns: Maximum time until the next check, if there is no wakeup.
            found: True if the check found something new.
        """
        self._gap_ns = self._each_ns if found else min(2 * self._gap_ns, _MAX_WATCH_FACTOR * self._each_ns)
        self._soonest_ns = now_ns + self._gap_ns
        self._calm_ns = self._each_ns if found else 2 * self._calm_ns
        if not self._wakes:
            self._due_ns = self._soonest_ns
        elif self._calm_ns <= _CALM_NS:
            self._due_ns = now_ns + min(again_ns, self._calm_ns)
        else:
            self._due_ns = now_ns + again_ns

    def left_ns(self, now_ns: int, notified: bool) -> int:
        """Return the time in nanoseconds until the next check for new processes; `notified` is True after a wakeup."""
        return max((self._soonest_ns if notified else self._due_ns) - now_ns, 0)


class Cadence:
    """The maximum time in ns for which samples wait for others in perf's rings (`wait_ns`) before they are
    read as one batch.

    It starts short, so that the necessary size of stack copies is learned early.
    """

    def __init__(self, options: CollectOptions, hold_s: float = 0.0) -> None:
        """Choose the limits for the time that samples may wait in the rings.

        Args:
            options: Options of the recording.
            hold_s: Maximum time in seconds for which samples wait. It is limited to twice HOLD times flush_s,
                or to four times HOLD times flush_s if samples are few.
        """
        self.flush_ns = round(options.flush_s * 1e9)
        # few large batches, because a large part of a batch's cost does not depend on its size
        usual_s = HOLD * options.flush_s
        long_s = max(2 * usual_s, min(4 * usual_s, _FEW / options.rate_hz))
        self._full_batch_ns = round(1e9 * min(BATCH / options.rate_hz, max(usual_s, min(long_s, hold_s))))
        self._restart_ns = max(FIRST_FLUSH_NS, round(_RESTART_SAMPLES * 1e9 / options.rate_hz))
        self.wait_ns = FIRST_FLUSH_NS

    def restart(self) -> None:
        """Make the next samples wait only for a short time, as at the beginning of a recording.

        They still wait for a few sampling periods, because each reading costs milliseconds, also without
        samples.
        """
        self.wait_ns = min(self.wait_ns, self._restart_ns)

    def note_flush(self, took_ns: int) -> None:
        """Note that all samples were yielded, which took took_ns of processor time. If that was long, later
        batches are shorter.
        """
        most_ns = min(self._full_batch_ns, self.wait_ns * _HAND_OUT_NS // max(took_ns, 1))
        self.wait_ns = max(min(2 * self.wait_ns, most_ns), min(self.flush_ns, 2 * self.wait_ns))


class RecordWait:
    """A wait of a collector for records of the kernel, ends of processes, flushes, and the next check of
    programs.

    Attributes:
        waiter: The descriptors that end a wait.
        watch: Function that checks the programs of the recording. It returns the time until its next call in ns, or
            None if another collector is to take over.
        look: Function that reads new generated code in the target after each sampling period (see
            Feedback.look), None if there is none.
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
        """Open perf events that wake the collector at new executable mappings, if `watch` must learn of them
        soon. The rings then need not be polled for new processes.
        """
        if self.watch is None or self._wakes or self._alarm is not None:
            return
        with contextlib.suppress(PerfNotAllowed):
            self._alarm = MappingAlarm(reader.rings.owners)
            self.waiter.add_alarms(self._alarm.fds)
            self._watch_times = WatchTimes(self._options, wakes=True)

    def wait_until(self, due_ns: int, is_over: Callable[[], bool], change_rates: Callable[[], float]) -> None:
        """Wait until a time, a flush, the end of the recording's last process or a wakeup by a ring buffer.

        Args:
            due_ns: Monotonic time at which the wait ends.
            is_over: Function that returns True if the wait must end.
            change_rates: Function that changes the rates of events that are due, and returns the time until
                the next change in ns.
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
        """Call the function `watch`, which checks programs, if it is due. Return the time in nanoseconds
        until its next call, or None if another collector takes over.
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
        """Wait for the end of processes, for wait_ns at most, and note the processes that have ended."""
        tracked = self._members.tracked
        for fd in self.waiter.wait(wait_ns, tracked.alive.values()):
            tracked.note_end(fd)

    def close(self) -> None:
        try:
            if self._alarm is not None:
                self._alarm.close()
        finally:
            self.waiter.close()
