"""Processor time of children that a recording does not follow.

A process that leaves its work to children looks idle in its own profile. /proc/PID/stat has the time of live children.
The time of a child that has ended is in the account of the parent that waited for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyprof.collectors.linux.children import find_descendants
from pyprof.collectors.linux.process_times import read_times
from pyprof.records import dataclass

_LOOK_NS = 2_000_000_000
_BUDGET = 100
"""Minimum ratio of the time between two readings of children's processor time to the cost of one."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time in nanoseconds: own_ns of the recorded processes, children_ns of their children that are not
    recorded.
    """

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
