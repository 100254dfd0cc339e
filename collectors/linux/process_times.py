"""Processor time of one process, or of some of its threads, as the kernel accounts it.

The account of a process includes threads that have ended, and children once it has waited for them.
"""

from __future__ import annotations

import os
import re
import time

from pyprof.collectors.linux import procfs
from pyprof.records import dataclass, field

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Length of a clock tick, the unit of times in /proc/PID/stat, in nanoseconds."""


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


def read_boot_ticks() -> int:
    """Return the current time in the unit of start times in /proc/PID/stat."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK_NS


@dataclass(slots=True)
class MatchingThreads:
    """The threads of one process, and the processor time for which their names matched a pattern.

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
        """Read the clocks of all threads, and return total_ns."""
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
