"""The start times of the threads of a recording: a tid that the kernel reuses is another thread.

The input are fork records of the kernel and readings of /proc. The output is a thread's start
(CLOCK_MONOTONIC) for a tid and a time. The collectors of one recording share the start times, so that all of
them identify a thread alike.

A fork record has nanoseconds; /proc has clock ticks (proc_pid_stat(5), field 22), rounded down. If both report a
thread, the first report counts. A tid that is new to the recording cannot have belonged to another recorded thread. So
the time at which it was first seen serves as its start, and saves a read of /proc, during which a short-lived thread
would end.
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
from pyprof.lazy_dataclasses import dataclass, field

I64 = npt.NDArray[np.int64]
T = TypeVar("T")

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_LATE_NS = 1_000_000
"""Maximum difference in ns between the clocks of /proc and of fork records. It is also the maximum between a
thread's start and its fork record.
"""
_KEPT_NS = 10_000_000_000
"""Time in ns after a thread's end during which samples of it may still arrive."""


class _Life(NamedTuple):
    """The start and end of one thread that had a certain tid. The kernel may have given the tid to several threads in
    turn.

    Attributes:
        started: Its start time (CLOCK_MONOTONIC, ns), which identifies it.
        since_ns: Time from which a sample belongs to it. It is later than `started` if only /proc, which rounds down,
            has reported the thread.
    """

    started: int
    since_ns: int


_NEVER = [_Life(0, 0)]


class ThreadLives:
    """The start times of all threads of a recording, by tid."""

    def __init__(self) -> None:
        self._lives: dict[int, list[_Life]] = {}
        self._from_proc: set[int] = set()
        self._ended: set[int] = set()
        self._gone_ns: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lives.values()))

    def note_fork(self, tid: int, time_ns: int) -> None:
        """Store the start of a thread from a fork record of the kernel. Records arrive in order of time."""
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
        """Apply the fork record of a tid's latest thread, which arrived after the thread was seen: samples
        from the record's time on belong to the thread.

        If another fork record came before, that one belonged to an earlier thread with the same tid.
        """
        started, since_ns = lives[-1]
        if since_ns < min(started, time_ns):
            lives.insert(-1, _Life(since_ns, since_ns))
        lives[-1] = _Life(started, time_ns)

    def find_seen_start(self, tid: int) -> int:
        """Return the start time in ns of the thread that has this tid now. It is the present time if the tid
        is new, because the caller has just seen the thread for the first time.
        """
        if tid in self._lives and tid not in self._ended:
            return self.read_proc_start(tid)
        now = time.monotonic_ns()
        self._ended.discard(tid)
        self._from_proc.discard(tid)
        self._lives.setdefault(tid, []).append(_Life(now, now))
        return now

    def read_proc_start(self, tid: int) -> int:
        """Return the start time in ns of the thread that has this tid now, according to /proc; 0 if there is none."""
        lives = self._lives.get(tid, [])
        ticks = procfs.read_start_ticks(tid)
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

    def note_end(self, tid: int, started: int) -> None:
        """Store that a thread has ended. The next thread with its tid is another one, even in the same clock tick."""
        if self._lives.get(tid, _NEVER)[-1].started == started:
            self._ended.add(tid)

    def find_start(self, tid: int, time_ns: int) -> int:
        """Return the start time in ns of the thread that had a tid at a time, or 0 if no thread with it is
        known.

        For a time before all known threads, it is that of the first one.
        """
        lives = self._lives.get(tid) or _NEVER
        return next((life.started for life in reversed(lives) if life.since_ns <= time_ns), lives[0].started)

    def find_process(self, pid: int, started: int) -> int:
        """Return the start time in ns of a process, that is of its main thread, at the time when one of its
        threads started.

        Args:
            pid: The process.
            started: Start time of the thread; for 0 the result is 0.
        """
        return self.find_start(pid, started + TICK_NS) if started else 0

    def started(self, tid: npt.NDArray[np.integer], time_ns: I64) -> I64:
        """Return the start times of threads as a column of shape (n,) in ns, for columns of tids and of times
        at which the threads had them.
        """
        found = [(self._lives.get(each) or _NEVER)[0].started for each in tid.tolist()]
        if any(len(self._lives.get(each, _NEVER)) > 1 for each in set(tid.tolist())):
            found = [self.find_start(each, at) for each, at in zip(tid.tolist(), time_ns.tolist(), strict=True)]
        return np.array(found, np.int64)

    def retire(self) -> None:
        """Forget the start times of threads that ended more than 10 s ago."""
        now = time.monotonic_ns()
        for tid, lives in list(self._lives.items()):
            self._lives[tid] = [life for life, then in pairwise(lives) if then.since_ns > now - _KEPT_NS] + lives[-1:]
            if os.path.exists(f"/proc/{tid}"):
                self._gone_ns.pop(tid, None)
            elif self._gone_ns.setdefault(tid, now) <= now - _KEPT_NS:
                del self._lives[tid], self._gone_ns[tid]
                self._from_proc.discard(tid)
                self._ended.discard(tid)


class DelayedRemoval(Generic[T]):
    """A filter for items that have ended, such as threads. An item passes only when it was given at two
    successive calls, because samples of it may still arrive after the first one.
    """

    def __init__(self) -> None:
        self._before: set[T] = set()

    def take_gone(self, ended: Set[T]) -> Set[T]:
        """Return the items that are in `ended` and were so at the last call, but were not returned yet.

        Args:
            ended: All items that have ended.
        """
        now, self._before = self._before & ended, set(ended - self._before)
        return now


@dataclass(frozen=True, slots=True)
class Identities:
    """The identifiers of threads and address spaces in one recording. All collectors of the recording share
    them, so that no identifier is used twice.

    Attributes:
        next_id: Function that returns a new number, unique within the recording.
        lives: Start times of threads, which distinguish threads with the same tid.
    """

    next_id: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    lives: ThreadLives = field(default_factory=ThreadLives)
