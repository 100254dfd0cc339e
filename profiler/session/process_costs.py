"""Processor time and memory of this process, and processor time of children that a recording does not follow.

A process that leaves its work to children looks idle in its own profile. /proc/PID/stat has the time of live children.
The time of a child that has ended is in the account of the parent that waited for it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.children import find_descendants
from pyprof.collectors.linux.libc import trim_heap
from pyprof.collectors.linux.process_times import read_times
from pyprof.objfile.file_opener import current_opener
from pyprof.records import dataclass


class OwnCost(NamedTuple):
    cpu_s: float
    """Processor time of this process, user and system, in seconds."""
    max_rss_kb: int
    """Peak resident memory of this process in KiB: the kernel's VmHWM.

    It is not ru_maxrss of getrusage, which is kept through fork and exec: it begins with the value of the process that
    started the program.
    """


_LATELY_S = 5.0
_TRIMMED_S = 10.0


def own_cost() -> OwnCost:
    return OwnCost(_cpu_s(), _max_rss_kb())


class RecentCost:
    """A cheap own_cost() of this process for frequent calls. It reads the peak memory only every few seconds."""

    def __init__(self) -> None:
        self._max_rss_kb = 0
        self._read_at = 0.0

    def __call__(self) -> OwnCost:
        if (now := time.monotonic()) >= self._read_at:
            self._max_rss_kb, self._read_at = _max_rss_kb(), now + _LATELY_S
        return OwnCost(_cpu_s(), self._max_rss_kb)


class OwnHeap:
    """The heap of this process, whose free memory is returned to the kernel now and then.

    Several threads allocate and free arrays of all sizes, each in a separate heap. Long-lived objects lie between them,
    so a heap never shrinks by itself. Without this, an agent had grown by half after some hundred windows.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def trim(self, drop: Callable[[], None] = lambda: None) -> None:
        """Return free heap memory of this process to the kernel, unless it was done recently. It takes some
        milliseconds.

        Args:
            drop: Called before; frees caches that can be read again.
        """
        if (now := time.monotonic()) >= self._due:
            self._due = now + _TRIMMED_S
            drop()
            trim_heap(0)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _max_rss_kb() -> int:
    try:
        words = procfs.parse_status(current_opener().read_status(os.getpid(), "status")).get("VmHWM", "0").split()
    except OSError:  # the file broker that could open the file has ended
        words = ["0"]
    return int(words[0])


_LOOK_NS = 2_000_000_000
_BUDGET = 100
"""Minimum ratio of the time between two readings of children's processor time to the cost of one."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time in nanoseconds, of the recorded processes (own_ns) and of their children (children_ns)."""

    own_ns: int = 0
    children_ns: int = 0

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(self.own_ns - earlier.own_ns, max(self.children_ns - earlier.children_ns, 0))


NOTHING = Spent()


class UnfollowedChildren:
    """A meter of the processor time of children that are not recorded.

    Args:
        pids: Pids of the recorded processes. Their time counts from now on.
        clock: Returns nanoseconds.
    """

    def __init__(self, pids: Iterable[int], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._pids = tuple(pids)
        self._clock = clock
        self._not_before = 0
        self._taken = Spent()
        self._first = {pid: found for pid in self._pids if (found := _spent(pid)) is not None}
        self._last = dict(self._first)

    def read_times(self, force: bool = False) -> None:
        """Read the current processor times of children, unless the budget is used up and `force` is False.

        The last read counts for a process that has ended.
        """
        if self._clock() < self._not_before and not force:
            return
        before = time.thread_time_ns()
        for pid in self._first:
            found = _spent(pid)
            if found is not None:
                self._last[pid] = found
        self._not_before = self._clock() + max(_LOOK_NS, _BUDGET * (time.thread_time_ns() - before))

    def take_times(self) -> Spent:
        """Return the processor time of the recorded processes and of children that are not recorded since the last
        call.
        """
        now = self._now()
        taken, self._taken = self._taken, now
        return now - taken

    def so_far(self) -> Spent:
        """Return the processor time of the recorded processes and of unrecorded children since the last take_times(),
        without a reset.
        """
        return self._now() - self._taken

    def _now(self) -> Spent:
        self.read_times(force=True)
        parts = [last - self._first[pid] for pid, last in self._last.items()]
        return Spent(sum(part.own_ns for part in parts), sum(part.children_ns for part in parts))


def _spent(pid: int) -> Spent | None:
    """Return the processor time of a process since its start in nanoseconds, None if it has ended."""
    own = read_times(pid)
    if own is None:
        return None
    below = [times for child in find_descendants([pid]) if (times := read_times(child)) is not None]
    return Spent(own.own_ns, own.waited_ns + sum(times.own_ns + times.waited_ns for times in below))
