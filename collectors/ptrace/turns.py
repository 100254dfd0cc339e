"""Who has a processor, and whom we have displaced: by the kernel's counts of each thread's turns.

A runnable thread (R) has a processor or waits for one. One that waits stands where it fell asleep or lost its turn,
however long it waits there: as a sample that place would count for time in which it did not run. /proc/TID/schedstat
counts how often a thread got a processor, /proc/TID/sched how often it left one: the difference is 1 while it has one.

Where all processors are busy we get ours by displacing a thread. The kernel reads one clock for both: our turn begins
at the very nanosecond at which its turn ended (se.exec_start). Such a thread ran until we came and stands still until
we leave, so its sample is exact. A thread on another processor has run on before it stops.

So where threads wait or switch often, processors are visited one after the other: on each one only the displaced one
of such threads is sampled. Else a thread that runs for 0.05 ms at a time would be found at its longest system calls (a
server of threads that take turns with a lock: up to 40 percentage points too much). A thread that leaves its processor
seldom (ptrace/steadiness.py) is sampled wherever it runs, at one visit of as many as there are processors.

Who samples must not be displaced by its own: other threads of ours, or samples that come from elsewhere between two
rounds. There threads are sampled by their share of a processor (ptrace/processor_share.py).
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterable
from enum import IntEnum

from pyprof.collectors.linux.libc import PtraceCalls, sched_setattr
from pyprof.collectors.ptrace.threads import Thread

MOST_VISITED = 8
"""Processors: each one is visited at the sampling rate."""
_STAY = 4
"""Visits to one processor before the next: who moves waits for a processor first, and may come late."""
_LEAST_ASKED, _UNSURE = 50, 0.1
_TRIES = 3
_BRIEF, _LISTED = 20, 4


class Turn(IntEnum):
    UNKNOWN = 0  # the kernel does not say (CONFIG_SCHED_DEBUG before Linux 6.15)
    RUNNING = 1  # on another processor than ours
    DISPLACED = 2  # by us
    LEFT = 3  # it fell asleep, and we came when it left
    WAITING = 4  # for a processor, or for something else


def turn_ns(sched: bytes) -> int:
    """When the turn of a thread began or ended, in ns of its processor's clock. Raises ValueError."""
    begin = sched.index(b":", sched.index(b"\nse.exec_start")) + 1
    return int(sched[begin : sched.index(b"\n", begin)].replace(b".", b""))


def turns_ended(sched: bytes) -> tuple[int, int]:
    """How many turns of a thread have ended, and how many of them to wait for something. Raises ValueError."""
    ended = sched.index(b":", sched.index(b"\nnr_switches")) + 1
    waits = sched.index(b":", sched.index(b"\nnr_voluntary_switches", ended)) + 1
    return int(sched[ended : sched.index(b"\n", ended)]), int(sched[waits : sched.index(b"\n", waits)])


def _shorten_slice() -> None:
    """Ask for turns of 0.1 ms, the shortest that the kernel takes: who wakes may then displace who runs, without any
    right, from Linux 6.12 on. Elsewhere nothing happens.
    """
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice, reset_on_fork = os.getpriority(os.PRIO_PROCESS, 0), 1
        sched_setattr(struct.pack("=IIQiIQQQ", 48, 0, reset_on_fork, nice, 0, 100_000, 0, 0))


class Turns:
    """visited: the processors that are visited in turn; empty as long as all are looked at from wherever we are. own:
    /proc/.../sched of our thread, -1 where nobody is asked who has a processor.
    """

    def __init__(self, ptrace: PtraceCalls, alone: bool, may_visit: bool) -> None:
        """alone: nobody else samples between two rounds. may_visit: more rounds a second are allowed."""
        self._alone = alone
        self._may_visit = may_visit
        self.visited: tuple[int, ...] = ()
        self._ptrace = ptrace
        self.own = -1
        self._allowed: set[int] = set()
        self._began_ns = -1
        self._is_read = self._is_wanted = False
        self._asked = self._unsure = self._visits = 0

    def begin(self) -> None:
        """In the thread that samples. Does nothing where that is not the first one of ours."""
        if not self._alone or threading.get_native_id() != os.getpid():
            return
        _shorten_slice()
        with contextlib.suppress(OSError):
            self.own = os.open("/proc/thread-self/sched", os.O_RDONLY | os.O_CLOEXEC)
            self._allowed = os.sched_getaffinity(0)

    def ready(self) -> None:
        """Before we sleep until a sampling time: go to the processor whose turn it is, and come before others there."""
        if self.visited:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, (self.visited[self._visits // _STAY % len(self.visited)],))
        self.hurry()

    def hurry(self) -> None:
        """Before a sleep that may end at a sampling time. Who comes late, or is displaced while it looks, sees less of
        what runs on its processor than of what runs elsewhere.
        """
        if self.own >= 0:
            self._ptrace.hurry()

    def arrived(self) -> None:
        """A sampling time: we have slept, and have a processor again. When our turn began is read at once where the
        last round asked for it, for a tick of the kernel's timer moves that number. Most rounds do not ask.
        """
        self._visits += 1
        self._is_read = False
        if self._is_wanted or self.visited:
            self._read_own()
        self._is_wanted = False

    def _read_own(self) -> None:
        self._is_read, self._began_ns = True, -1
        with contextlib.suppress(OSError, ValueError):
            self._began_ns = turn_ns(os.pread(self.own, 4096, 0))

    def _has_displaced(self, at_ns: int) -> bool:
        """Did a turn that ended then end because ours began?"""
        self._is_wanted = True
        if not self._is_read:
            self._read_own()
        return at_ns == self._began_ns

    @property
    def began(self) -> int | None:
        """When our turn began, -1 where the kernel does not say; None: it was not read in this round."""
        return self._began_ns if self._is_read else None

    @property
    def is_wanted(self) -> bool:
        """Did the last round ask when our turn began?"""
        return self._is_wanted

    def learned(self, is_read: bool, began_ns: int, is_wanted: bool) -> None:
        """The same three, of a round that others have made."""
        self._is_wanted = is_wanted
        self._is_read, self._began_ns = is_read, began_ns or -1

    def counted(self, thread: Thread, asked: int, waiting: int) -> None:
        """So often others have asked whether a thread is due, and so often it waited for a processor."""
        if not thread.steadiness.steady:
            self._asked += asked
            self._unsure += waiting

    def leave(self) -> None:
        """All threads were looked at."""
        if self.visited:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._allowed)

    def of(self, thread: Thread, schedstat: bytes, asleep: bool = False) -> Turn:
        """schedstat: of the thread, read just now. Raises ProcessLookupError.

        A thread that has come to a processor once more than it had left one a moment later has not left it since: it
        runs, and nothing else need be read. That is most of them.
        """
        if self.own < 0:
            return Turn.UNKNOWN
        for _ in range(_TRIES):
            ran_ns, _, arrivals = map(int, schedstat.split())
            sched = thread.sched()
            try:
                departures, waits = turns_ended(sched)
                thread.steadiness.learn(ran_ns, waits)
                if arrivals - departures == 1:
                    return Turn.RUNNING
                at_ns = turn_ns(sched)
            except ValueError:
                return Turn.UNKNOWN
            if self._has_displaced(at_ns):
                return Turn.LEFT if asleep else Turn.DISPLACED
            if self._began_ns < 0:
                return Turn.UNKNOWN
            schedstat = thread.schedstat()
            if int(schedstat.split()[2]) == arrivals:
                break
        return Turn.WAITING

    def is_due(self, thread: Thread, schedstat: bytes) -> bool:
        """Is a thread that could run to be sampled now? Raises ProcessLookupError."""
        turn = self.of(thread, schedstat)
        if turn is Turn.UNKNOWN:
            return thread.share.due(schedstat)
        runs, steady = turn in (Turn.DISPLACED, Turn.RUNNING), thread.steadiness.steady
        if not steady:
            self._asked += 1
            self._unsure += not runs
        if self.visited and steady:
            return runs and self.is_for_steady
        return turn is Turn.DISPLACED or (runs and not self.visited)

    @property
    def searches(self) -> bool:
        """Is who was displaced to be looked for before all else? Another processor that has nothing to do takes such a
        thread, and most of them before all threads are looked at. Who may hurry displaces enough.
        """
        return bool(self.visited) and not self._ptrace.hurries and self._began_ns >= 0

    def is_displaced(self, sched: bytes) -> bool:
        """sched: of a thread."""
        try:
            return turn_ns(sched) == self._began_ns
        except ValueError:
            return False

    def has_just_left(self, thread: Thread, schedstat: bytes) -> bool:
        """Did a thread that sleeps run until we came? Raises ProcessLookupError. Who may not hurry is often late, and
        then most threads have just fallen asleep.
        """
        return bool(self.visited) and self._ptrace.hurries and self.of(thread, schedstat, asleep=True) is Turn.LEFT

    def fell_asleep(self) -> None:
        """A thread that ran was asleep before it stopped."""
        self._unsure += 1

    @property
    def is_for_steady(self) -> bool:
        """Are threads that leave their processor seldom sampled at this visit?"""
        return not self.visited or self._visits % len(self.visited) == 0

    @property
    def lists(self) -> bool:
        """Are children looked for that do not have our processor, where the one that has is looked for first?"""
        return not self.searches or self._visits % _LISTED == 0

    def visit(self, pids: Iterable[int], brief: int) -> bool:
        """Begin to visit the processors, where that is better and can be. pids: of the targets. brief: processes that
        ended before they were looked at.
        """
        unsure = self._asked >= _LEAST_ASKED and self._unsure >= _UNSURE * self._asked
        short = brief >= _BRIEF and not self._ptrace.hurries
        if self.visited or not self._may_visit or not (unsure or short):
            return False
        self._asked = self._unsure = 0
        there: set[int] = set()
        for pid in pids:
            with contextlib.suppress(OSError):
                there |= os.sched_getaffinity(pid)
        if there <= self._allowed and len(self._allowed) <= MOST_VISITED:
            self.visited = tuple(sorted(self._allowed))
        return bool(self.visited)

    def close(self) -> None:
        self.leave()
        self.visited = ()
        if self.own >= 0:
            os.close(self.own)
        self.own = -1
