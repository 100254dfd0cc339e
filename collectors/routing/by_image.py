"""The processes that are stopped for samples because of the program that they run.

A process is checked when it appears, after each exec, and when it has mapped another file. If the result is not clear
yet (an interpreter that has not started), the check is repeated soon, at growing distances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyprof.records import dataclass, field

NeedsStops = Callable[[int], str | None]
"""Function that returns why a process (pid) needs stops for its samples, "" if it needs none, None if that is not known
yet.
"""

_SOON_NS, _LATE_NS = 10_000_000, 1_000_000_000
_YOUNG_NS, _SETTLED_NS = 50_000_000, 3_000_000_000
"""Limits in nanoseconds for repeating the check whether a young process needs stops. The way in which an interpreter
starts may make stops unnecessary.
"""
_BUDGET, _MAX_NS = 10, 5_000_000
"""Limits of the checks whether processes need stops: after checks that cost t there are none for 10 t; and the maximum
cost of checks in one call.
"""
_MOST = 1 << 16
_NEVER_NS = 2**62


@dataclass(slots=True)
class _Pending:
    """The time of the next check whether a process needs stops, and the distance to the check after it."""

    due_ns: int
    wait_ns: int


@dataclass
class ByImage:
    """The processes that need stops for their samples because of the program that they run.

    Attributes:
        needs_stops: The check.
        reasons: Reason by pid, of the processes that need stops now.
        why: Processes by reason, for all reasons so far.
    """

    needs_stops: NeedsStops
    clock: Callable[[], int] = time.monotonic_ns
    cost: Callable[[], int] = time.thread_time_ns
    reasons: dict[int, str] = field(default_factory=dict)
    why: dict[str, set[int]] = field(default_factory=dict)
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _not_before: int = 0

    def changed(self, pids: Iterable[int]) -> None:
        """Note processes that have appeared or run new code, so that they are checked for the need of stops."""
        now = self.clock()
        for pid in pids:
            if len(self._pending) < _MOST:
                self._pending[pid] = _Pending(now, _SOON_NS)

    def wait_ns(self) -> int:
        """Return the time until the next check whether processes need stops, if nothing changes."""
        due = max(min((pending.due_ns for pending in self._pending.values()), default=_NEVER_NS), self._not_before)
        return max(due - self.clock(), 0)

    def check_due(self, all_of_them: bool = False, is_over: Callable[[], bool] = lambda: False) -> list[int]:
        """Check the processes whose check is due, and return those for which the need of stops is decided now.
        all_of_them ignores the budget. Check none after is_over() has returned True.
        """
        now = self.clock()
        due = [(pid, pending) for pid, pending in self._pending.items() if pending.due_ns <= now]
        if not due or (not all_of_them and now < self._not_before):
            return []
        spent = self.cost()
        decided = []
        for pid, pending in due:
            if is_over():
                break
            if self._is_decided(pid, self.needs_stops(pid), pending):
                decided.append(pid)
            if not all_of_them and self.cost() > spent + _MAX_NS:
                break
        self._not_before = self.clock() + min(_BUDGET * (self.cost() - spent), _LATE_NS)
        return decided

    def _is_decided(self, pid: int, reason: str | None, pending: _Pending) -> bool:
        if reason is None:
            pending.due_ns = self.clock() + pending.wait_ns
            pending.wait_ns = min(2 * pending.wait_ns, _LATE_NS)
            return False
        if not reason:
            del self._pending[pid]
            self.reasons.pop(pid, None)
            return True
        self.reasons[pid] = reason
        self.why.setdefault(reason, set()).add(pid)
        pending.wait_ns = max(2 * pending.wait_ns, _YOUNG_NS)
        pending.due_ns = self.clock() + pending.wait_ns
        if pending.wait_ns > _SETTLED_NS:
            del self._pending[pid]
        return True
