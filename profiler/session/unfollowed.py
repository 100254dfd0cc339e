"""Processor time of children that a recording does not follow, from the kernel's accounts.

A process that leaves its work to children looks idle in its own profile. The time of children that live is in
/proc/PID/stat. The time of those that ended is in the account of the parent that waited for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyprof.collectors.cpu_accounts import Times, parse_times
from pyprof.collectors.linux.children import descendants
from pyprof.records import dataclass

_LOOK_NS = 2_000_000_000
_BUDGET = 100
"""A look that took t is followed by none for 100 t."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Nanoseconds on processors: own, of the processes that are recorded; children, of their children."""

    own_ns: int = 0
    children_ns: int = 0

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(self.own_ns - earlier.own_ns, max(self.children_ns - earlier.children_ns, 0))


NOTHING = Spent()


class Unfollowed:
    """pids: the processes that are recorded, without their children. Their time counts from here on."""

    def __init__(self, pids: Iterable[int], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._pids = tuple(pids)
        self._clock = clock
        self._not_before = 0
        self._taken = Spent()
        self._first = {pid: found for pid in self._pids if (found := _spent(pid)) is not None}
        self._last = dict(self._first)

    def look(self, force: bool = False) -> None:
        """See what was spent until now, within a budget of the time unless forced; of a process that is gone the last
        look counts.
        """
        before = self._clock()
        if before < self._not_before and not force:
            return
        for pid in self._first:
            found = _spent(pid)
            if found is not None:
                self._last[pid] = found
        after = self._clock()
        self._not_before = after + max(_LOOK_NS, _BUDGET * (after - before))

    def take(self) -> Spent:
        """What was spent since the last call."""
        now = self._now()
        taken, self._taken = self._taken, now
        return now - taken

    def so_far(self) -> Spent:
        """What take() would say."""
        return self._now() - self._taken

    def _now(self) -> Spent:
        self.look(force=True)
        parts = [last - self._first[pid] for pid, last in self._last.items()]
        return Spent(sum(part.own_ns for part in parts), sum(part.children_ns for part in parts))


def _spent(pid: int) -> Spent | None:
    """Since the process began; None if it is gone."""
    own = _times(pid)
    if own is None:
        return None
    below = [times for child in descendants([pid]) if (times := _times(child)) is not None]
    return Spent(own.own_ns, own.waited_ns + sum(times.own_ns + times.waited_ns for times in below))


def _times(pid: int) -> Times | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_times(file.read())
    except (OSError, ValueError, IndexError):
        return None
