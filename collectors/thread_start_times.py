"""The start times of the threads of a recording: a tid that the kernel reuses is another thread.

The input are fork records of the kernel and readings of /proc. The output is a thread's start (CLOCK_MONOTONIC) for a
tid and a time. The collectors of one recording share it, so that all of them identify a thread alike.

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
"""Maximum difference in ns between the clocks of /proc and of fork records, and between a thread's start and its
record.
"""
_KEPT_NS = 10_000_000_000
"""Time in ns after a thread's end during which samples of it may still arrive."""


class _Life(NamedTuple):
    """The start and end of one thread that had a certain tid. The kernel may have given the tid to several threads in
    turn.

    Attributes:
        started: Its start, which identifies it.
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
        """Note a kernel record of a thread's start. Records arrive in order of time."""
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
        """Set the start of a tid's latest thread to the time of its fork record, which arrived after the thread was
        seen.

        If another fork record came before, that one belonged to an earlier thread.
        """
        started, since_ns = lives[-1]
        if since_ns < min(started, time_ns):
            lives.insert(-1, _Life(since_ns, since_ns))
        lives[-1] = _Life(started, time_ns)

    def find_seen_start(self, tid: int) -> int:
        """Return when the thread that has this tid now began or was first seen. The caller has just seen it."""
        if tid in self._lives and tid not in self._ended:
            return self.read_proc_start(tid)
        now = time.monotonic_ns()
        self._ended.discard(tid)
        self._from_proc.discard(tid)
        self._lives.setdefault(tid, []).append(_Life(now, now))
        return now

    def read_proc_start(self, tid: int) -> int:
        """Return when the thread that has this tid now began, according to /proc; 0 if there is none."""
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
        """Note that a thread has ended: the next one with its tid is another thread, even in the same clock tick."""
        if self._lives.get(tid, _NEVER)[-1].started == started:
            self._ended.add(tid)

    def find_start(self, tid: int, time_ns: int) -> int:
        """Return when the thread that had a tid at a time began, or 0 if no thread is known.

        For a time before all known threads, it is the first of them.
        """
        lives = self._lives.get(tid) or _NEVER
        return next((life.started for life in reversed(lives) if life.since_ns <= time_ns), lives[0].started)

    def find_process(self, pid: int, started: int) -> int:
        """Return the start time of a process by one of its threads: when its main thread began.

        Args:
            started: Start of the thread; 0 gives 0.
        """
        return self.find_start(pid, started + TICK_NS) if started else 0

    def started(self, tid: npt.NDArray[np.integer], time_ns: I64) -> I64:
        """Return the start times of many threads (tids), each at a time, as columns of shape (n,)."""
        found = [(self._lives.get(each) or _NEVER)[0].started for each in tid.tolist()]
        if any(len(self._lives.get(each, _NEVER)) > 1 for each in set(tid.tolist())):
            found = [self.find_start(each, at) for each, at in zip(tid.tolist(), time_ns.tolist(), strict=True)]
        return np.array(found, np.int64)

    def retire(self) -> None:
        """Forget the start times of threads that ended long ago."""
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
    """A filter for items that have ended, such as threads. It returns an item only when it was given at two successive
    calls, because samples may arrive late.
    """

    def __init__(self) -> None:
        self._before: set[T] = set()

    def take_gone(self, ended: Set[T]) -> Set[T]:
        """Return the items that are gone now and were already gone at the last call.

        Args:
            ended: All items that are gone now.
        """
        now, self._before = self._before & ended, set(ended - self._before)
        return now


@dataclass(frozen=True, slots=True)
class Identities:
    """The identifiers of threads and address spaces in one recording. Its collectors share them, so that none is used
    twice.

    Attributes:
        next_id: Returns numbers that are unique within the recording.
        lives: Start times of threads, which tell threads with one tid apart.
    """

    next_id: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    lives: ThreadLives = field(default_factory=ThreadLives)
