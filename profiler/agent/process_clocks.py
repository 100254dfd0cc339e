"""Processor time of each process between two moments, read from the kernel's clocks of processes.

clock_getcpuclockid(3) gives each process a clock that counts its time on processors to the nanosecond, threads that
have ended included. One reading is one system call, also for processes of other users.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyprof.agent.processes import Seen
from pyprof.collectors.cpu_accounts import TICK_NS, process_ns
from pyprof.records import dataclass

_POLL_S = 1.0
_REST = 5_000
"""A poll that took t is followed by none for so many times t."""


class ProcessTime(NamedTuple):
    """Processor time of one process in one window.

    began_ns: when the process began, by the monotonic clock, to a tick. ns: the time on processors. unread_ns: the time
    between the last reading and the end of the window, of a process that has ended; 0 of one that runs.
    """

    pid: int
    began_ns: int
    name: str
    ns: int
    unread_ns: int = 0


@dataclass(slots=True)
class _Reading:
    """window_ns: the clock when the window began. ns: the clock when it was last read, at the monotonic time at_ns."""

    name: str
    window_ns: int
    ns: int
    at_ns: int


class ProcessClocks:
    """The clocks of the processes of one recording. All methods may be called from any thread.

    recent_ns: processor time in the last window of those that run, by pid and start.
    """

    def __init__(self, read: Callable[[int], int] = process_ns) -> None:
        """Args:
        read: returns the clock of a process in nanoseconds, 0 where there is no such process.
        """
        self.recent_ns: dict[tuple[int, int], int] = {}
        self._read = read
        self._readings: dict[tuple[int, int], _Reading] = {}
        self._window_began = 0
        self._poll_at = 0.0
        self._lock = threading.Lock()

    def poll(self, processes: Mapping[int, Seen]) -> None:
        """Read all clocks: a process that ends before the window does is known until the last reading."""
        if (before := time.monotonic()) >= self._poll_at:
            with self._lock:
                self._read_all(processes)
            after = time.monotonic()
            self._poll_at = after + max(_POLL_S, _REST * (after - before))

    def end_window(self, processes: Mapping[int, Seen]) -> list[ProcessTime]:
        """Return the time of each process since the last call, and begin the next window.

        Args:
            processes: by pid, those that run. Processes that ran before and are missing have ended.
        """
        with self._lock:
            began_ns = time.monotonic_ns()
            self._read_all(processes)
            now_ns = time.monotonic_ns()
            ahead_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - now_ns
            self._window_began = (now_ns + ahead_ns) // TICK_NS
            times, kept, recent_ns = [], {}, {}
            for (pid, start), reading in self._readings.items():
                is_running = reading.at_ns >= began_ns
                spent_ns, unread_ns = reading.ns - reading.window_ns, 0 if is_running else now_ns - reading.at_ns
                if spent_ns or unread_ns:
                    times.append(ProcessTime(pid, start * TICK_NS - ahead_ns, reading.name, spent_ns, unread_ns))
                if is_running:
                    recent_ns[pid, start] = spent_ns
                    reading.window_ns = reading.ns
                    kept[pid, start] = reading
            self._readings, self.recent_ns = kept, recent_ns
        return times

    def _read_all(self, processes: Mapping[int, Seen]) -> None:
        for pid, seen in processes.items():
            ns = self._read(pid)
            reading = self._readings.get((pid, seen.start))
            if reading is None and ns:
                began = 0 if seen.start >= self._window_began > 0 else ns
                self._readings[pid, seen.start] = _Reading(seen.comm, began, ns, time.monotonic_ns())
            elif reading is not None and ns >= reading.ns:
                reading.ns, reading.at_ns = ns, time.monotonic_ns()
