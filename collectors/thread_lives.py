"""When the threads of a recording began: a tid that the kernel gives again is another thread.

In: forks as the kernel reports them, readings of /proc. Out: the life of a tid at a time, as the time at which it began
(CLOCK_MONOTONIC). The collectors of one recording share it, so that all of them call a thread the same.

A record of a fork has nanoseconds, /proc has clock ticks (proc_pid_stat(5), field 22), rounded down. Of a thread that
both report, whichever comes first counts. A number that is new to the recording has had no other thread here: when it
was seen first is as good as its start, and costs no look at /proc, in whose time a short-lived thread would end.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Set
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux import procfs
from pyprof.records import dataclass, field

I64 = npt.NDArray[np.int64]
T = TypeVar("T")

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_LATE_NS = 1_000_000
"""What the two clocks, and a start and its record, may lie apart."""
_KEPT_NS = 10_000_000_000
"""For so long nobody asks for a thread that has ended."""


class _Life(NamedTuple):
    """since_ns: from then on a sample is this thread's. That is later than started where only /proc, which rounds down,
    has reported it.
    """

    started: int
    since_ns: int


_NEVER = [_Life(0, 0)]


class ThreadLives:
    """Of one recording."""

    def __init__(self) -> None:
        self._lives: dict[int, list[_Life]] = {}
        self._from_proc: set[int] = set()
        self._ended: set[int] = set()
        self._gone_ns: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lives.values()))

    def forked(self, tid: int, time_ns: int) -> None:
        """A record of the kernel's says that a thread began. Records come in order of time."""
        lives = self._lives.setdefault(tid, [])
        rounded = tid in self._from_proc and -TICK_NS < time_ns - lives[-1].started < TICK_NS + _LATE_NS
        early = bool(lives) and time_ns <= lives[-1].started
        if rounded or early:
            self._recorded(lives, time_ns)
        else:
            lives.append(_Life(time_ns, time_ns))
        if rounded or not early:
            self._from_proc.discard(tid)

    @staticmethod
    def _recorded(lives: list[_Life], time_ns: int) -> None:
        """The last life was seen before its record came. An earlier record than this one was of a life before it."""
        started, since_ns = lives[-1]
        if since_ns < min(started, time_ns):
            lives.insert(-1, _Life(since_ns, since_ns))
        lives[-1] = _Life(started, time_ns)

    def seen(self, tid: int) -> int:
        """When the thread began, or was seen first, that has this tid now. Whoever asks has just seen it."""
        if tid in self._lives and tid not in self._ended:
            return self.found(tid)
        now = time.monotonic_ns()
        self._ended.discard(tid)
        self._from_proc.discard(tid)
        self._lives.setdefault(tid, []).append(_Life(now, now))
        return now

    def found(self, tid: int) -> int:
        """When the thread began that has this tid now, as /proc says; 0 if there is none."""
        lives = self._lives.get(tid, [])
        ticks = procfs.started(tid)
        if ticks is None:
            return lives[-1].started if lives and tid not in self._ended else 0
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        at = ticks * TICK_NS + now - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if not lives or tid in self._ended or lives[-1].started <= at - _LATE_NS:
            self._ended.discard(tid)
            self._from_proc.add(tid)
            lives.append(_Life(max(at, lives[-1].started + 1) if lives else at, min(at + TICK_NS, now)))
            self._lives[tid] = lives
        return lives[-1].started

    def ended(self, tid: int, started: int) -> None:
        """A thread has ended: the next one of its number is another, also one of the same tick."""
        if self._lives.get(tid, _NEVER)[-1].started == started:
            self._ended.add(tid)

    def at(self, tid: int, time_ns: int) -> int:
        """When the thread began that had this tid at a time; of a time before all that is known, the first one. 0: not
        known.
        """
        lives = self._lives.get(tid) or _NEVER
        return next((life.started for life in reversed(lives) if life.since_ns <= time_ns), lives[0].started)

    def process_at(self, pid: int, started: int) -> int:
        """When the first thread of the process began to which a thread belongs that began at a time."""
        return self.at(pid, started + TICK_NS) if started else 0

    def started(self, tid: npt.NDArray[np.integer], time_ns: I64) -> I64:
        """at() of columns of shape (n,)."""
        found = [(self._lives.get(each) or _NEVER)[0].started for each in tid.tolist()]
        if any(len(self._lives.get(each, _NEVER)) > 1 for each in set(tid.tolist())):
            found = [self.at(each, at) for each, at in zip(tid.tolist(), time_ns.tolist(), strict=True)]
        return np.array(found, np.int64)

    def retire(self) -> None:
        """Forget what had ended long ago."""
        now = time.monotonic_ns()
        for tid, lives in list(self._lives.items()):
            self._lives[tid] = [life for life, then in pairwise(lives) if then.since_ns > now - _KEPT_NS] + lives[-1:]
            if os.path.exists(f"/proc/{tid}"):
                self._gone_ns.pop(tid, None)
            elif self._gone_ns.setdefault(tid, now) <= now - _KEPT_NS:
                del self._lives[tid], self._gone_ns[tid]
                self._from_proc.discard(tid)
                self._ended.discard(tid)


class Leaving(Generic[T]):
    """What is to go with the second window that finds it gone: late samples may still be in the next one."""

    def __init__(self) -> None:
        self._before: set[T] = set()

    def settle(self, gone: Set[T]) -> Set[T]:
        """gone: all that are not there now. Result: those of them that were not there the last time, too."""
        now, self._before = self._before & gone, set(gone - self._before)
        return now


@dataclass(frozen=True, slots=True)
class Identities:
    """What the collectors of one recording share, so that nothing of two of them has the same name. next_id: gives
    numbers that are unique within the recording.
    """

    next_id: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    lives: ThreadLives = field(default_factory=ThreadLives)
