"""Processor time of a process, of some of its threads, or of its unrecorded children, as the kernel accounts it.

The account of a process includes threads that have ended, and children once it has waited for them. A process
that leaves its work to children looks idle in its own profile. /proc/PID/stat of a child that still runs has
the child's time.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Iterable

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.child_processes import find_descendants
from pyprof.lazy_dataclasses import dataclass, field

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Length of a clock tick, the unit of times in /proc/PID/stat, in nanoseconds."""

_LOOK_NS = 2_000_000_000
_BUDGET = 100
"""Minimum ratio of the time between two readings of children's processor times to the processor time that a
reading costs.
"""


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """Processor time of one process by the kernel's accounts.

    Attributes:
        name: The process's name.
        parent: Its parent's pid.
        start: Its start in clock ticks since boot.
        own_ns: Time of its threads.
        waited_ns: Time of children that it has waited for.
        own_kernel_ns: Part of own_ns in the kernel.
        waited_kernel_ns: Part of waited_ns in the kernel.
    """

    name: str
    parent: int
    start: int
    own_ns: int
    waited_ns: int
    own_kernel_ns: int = 0
    waited_kernel_ns: int = 0


def parse_times(stat: bytes) -> ProcessTimes:
    """Parse the processor times of a line of /proc/PID/stat.

    Raises:
        ValueError: The line is not valid.
        IndexError: The line is too short.
    """
    opening, closing = stat.index(b"("), stat.rindex(b")")
    fields = stat[closing + 1 :].split()
    user, system, waited_user, waited_system = map(int, fields[11:15])
    return ProcessTimes(
        os.fsdecode(stat[opening + 1 : closing]),
        int(fields[1]),
        int(fields[19]),
        (user + system) * TICK_NS,
        (waited_user + waited_system) * TICK_NS,
        system * TICK_NS,
        waited_system * TICK_NS,
    )


def read_times(pid: int) -> ProcessTimes | None:
    """Return the processor times of a process from /proc/PID/stat, None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_times(file.read())
    except (OSError, ValueError, IndexError):
        return None


def read_process_ns(pid: int) -> int:
    """Return a process's own processor time in nanoseconds (clock_getcpuclockid(3)), or 0 if it has ended."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError:
        return 0


_MIN_SHIFT_NS = 1_000_000_000


def read_clock_shift_ns() -> int:
    """Return by how many nanoseconds the values of read_process_ns() are too large at present, 0 if they are right.

    A library that is preloaded to set the wall clock of a process (libfaketime) also shifts the processor clocks of
    other processes, but not the times of getrusage(2).
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    shift_ns = read_process_ns(os.getpid()) - round((usage.ru_utime + usage.ru_stime) * 1e9)
    return shift_ns if abs(shift_ns) > _MIN_SHIFT_NS else 0


def read_boot_ticks() -> int:
    """Return the current time in the unit of start times in /proc/PID/stat."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK_NS


_READINGS = 3


def read_boot_ahead_ns() -> int:
    """Return how far boot time, the clock of processes' starts, is ahead of the monotonic clock, in nanoseconds.

    Of several readings the one with the shortest interruption counts: on a busy machine a thread may wait for a
    processor between the two clocks for a second.
    """
    readings = []
    for _ in range(_READINGS):
        before = time.monotonic_ns()
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.monotonic_ns()
        readings.append((after - before, boot - (before + after) // 2))
    return min(readings)[1]


@dataclass(slots=True)
class MatchingThreads:
    """The threads of one process whose names match a pattern, and the processor time that they have used while their
    names matched.

    Attributes:
        total_ns: Time of the threads that matched, including threads that have ended.
        last_ns: Processor clock of each thread at the last reading, by tid.
        has_ended: True if a thread that matched has ended, so that its time since the last reading is unknown.
        matched: Threads that matched.
    """

    total_ns: int = 0
    last_ns: dict[int, int] = field(default_factory=dict)
    has_ended: bool = False
    matched: set[int] = field(default_factory=set)

    def read(self, pid: int, pattern: re.Pattern[str]) -> int:
        """Read the processor clocks of all threads of the process, and return total_ns with the time of those
        whose names match.
        """
        try:
            tids = procfs.list_tasks(pid)
        except OSError:
            return self.total_ns
        now_ns = {tid: procfs.read_run_ns(pid, tid) for tid in tids}
        for tid, ns in now_ns.items():
            before_ns = self.last_ns.get(tid, 0)
            gained_ns = ns - before_ns if ns >= before_ns else ns  # another thread may have the tid now
            if gained_ns and pattern.search(procfs.read_thread_name(pid, tid)):
                self.total_ns += gained_ns
                self.matched.add(tid)
        self.has_ended |= bool(self.matched - now_ns.keys())
        self.matched &= now_ns.keys()
        self.last_ns = now_ns
        return self.total_ns


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor times in nanoseconds: own_ns of a recorded process, and children_ns of its children that are
    not recorded.
    """

    own_ns: int = 0
    children_ns: int = 0

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(self.own_ns - earlier.own_ns, max(self.children_ns - earlier.children_ns, 0))


NOTHING = Spent()


class UnfollowedChildren:
    """A meter of the processor time of recorded processes' children, for recordings that do not follow
    children.

    Args:
        pids: Pids of the recorded processes. Their time counts from now on.
        clock: Monotonic clock in nanoseconds.
    """

    def __init__(self, pids: Iterable[int], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._pids = tuple(pids)
        self._clock = clock
        self._not_before = 0
        self._taken = Spent()
        self._first = {pid: found for pid in self._pids if (found := _spent(pid)) is not None}
        self._last = dict(self._first)

    def read_times(self, force: bool = False) -> None:
        """Read the current processor times of the recorded processes and of their children. Nothing is read
        if reading has used its time budget, unless `force` is True.

        For a process that has ended, the last reading counts.
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
        """Return the processor time since the last take_times(), as take_times() does, but without a reset."""
        return self._now() - self._taken

    def _now(self) -> Spent:
        self.read_times(force=True)
        parts = [last - self._first[pid] for pid, last in self._last.items()]
        return Spent(sum(part.own_ns for part in parts), sum(part.children_ns for part in parts))


def _spent(pid: int) -> Spent | None:
    """Return the processor time of a process and of its children since their start, None if the process has ended."""
    own = read_times(pid)
    if own is None:
        return None
    below = [times for child in find_descendants([pid]) if (times := read_times(child)) is not None]
    return Spent(own.own_ns, own.waited_ns + sum(times.own_ns + times.waited_ns for times in below))
