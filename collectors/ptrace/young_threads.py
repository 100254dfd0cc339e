"""Sampling of threads that live too short to have accounts of their own.

A thread that can run either has a processor or waits for one. The kernel gives both times of a thread that lives long
enough (ptrace/threads.py). Shorter threads of a process tree are taken together: the processor time of the tree, less
the time for which older threads are sampled, divided by how often a short one was found. Without that, four threads of
a millisecond on one processor would get four times the time that they ran.
"""

from __future__ import annotations

_LEAST_NS = 80_000_000
_KEPT = 0.7
"""What counts of a window in the next one."""
_MOST_PAID = 0.5
"""Of what a window is due, for what was too much before."""
_MOST_BEHIND = 4
"""Samples that are made up for: more were never possible."""


class YoungThreads:
    """Of one tree of processes. share: of the times that a young thread is found, those at which it is to be sampled.
    rounds: sampling times since settle(). born: threads of all ages that were found so far. What was sampled too often,
    while that was not known, is sampled less later.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self.rounds = self.born = 0
        self._runnable = self._taken = self._others = 0
        self._expected = self._found = self._ahead = 0.0
        self._since_ns = self._spent_ns = -1

    def found(self, young: bool, taken: bool) -> None:
        """A thread that can run; of an older one only whether it is to be sampled matters."""
        self._runnable += young
        self._taken += taken and young
        self._others += taken and not young

    def found_older(self, taken: int) -> None:
        """So often an older thread that can run was sampled."""
        self._others += taken

    def settle(self, now_ns: int, spent_ns: int) -> None:
        """spent_ns: processor time of the tree so far."""
        elapsed = now_ns - self._since_ns
        if self._since_ns < 0:
            self._since_ns, self._spent_ns, self.rounds = now_ns, spent_ns, 0
        elif elapsed >= _LEAST_NS:
            ran = (spent_ns - self._spent_ns) / elapsed * self.rounds
            due = max(ran - self._others, 0)
            self._ahead = max(self._ahead + self._taken - due, -_MOST_BEHIND)
            paid = min(self._ahead, _MOST_PAID * due)
            self._expected = _KEPT * self._expected + due
            self._found = _KEPT * self._found + self._runnable
            if self._found >= 1:
                self.share = min(max((self._expected - paid) / self._found, 0), 1.0)
            self._since_ns, self._spent_ns = now_ns, spent_ns
            self._runnable = self._taken = self._others = self.rounds = 0
