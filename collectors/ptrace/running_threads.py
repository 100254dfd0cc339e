"""The threads that run on a processor, and those from which the sampler took its processor, by the kernel's
counts of context switches.

A turn is the time between a thread's switch onto a processor and its switch off it. A runnable thread (R) has
a processor or waits for one. A thread that waits is where it fell asleep or lost its processor, however long
it waits there. A sample would count that place for time in which the thread did not run. /proc/TID/schedstat
counts how often a thread got a processor, /proc/TID/sched how often it left one. The difference is 1 while it
has one.

If all processors are busy, the sampler gets one by displacing a thread, that is, by preempting it. The kernel
reads one clock for both: the sampler's turn begins at the very nanosecond at which the other turn ended
(se.exec_start). The displaced thread ran until then and stays where it is until the sampler leaves, so its
sample is exact. A thread on another processor continues to run before it stops.

So if threads wait or switch often, the sampler is pinned to one processor after the other. Each visit samples
only the displaced one of such threads. Otherwise a thread that runs for 0.05 ms at a time would be found in
its longest system calls (a server of threads that alternate by a lock: up to 40 percentage points too much).
A thread that rarely leaves its processor (ptrace/sampled_thread.py) is sampled wherever it runs, at one of as
many visits as there are processors.

The sampler must not be displaced by other threads of the profiler, and samples must not come from another collector
between two rounds. In such cases threads are sampled by their share of a processor (ptrace/sampled_thread.py).
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterable
from enum import IntEnum

from pyprof.collectors.linux.libc import PtraceCalls, sched_setattr
from pyprof.collectors.ptrace.sampled_thread import Thread

MAX_VISITED = 8
"""Maximum number of processors to which the sampler is pinned in turn. Each processor is visited at the
sampling rate.
"""
_STAY = 4
"""Number of consecutive visits of the sampler to one processor. After a move the sampler waits for a
processor and may be late.
"""
_MIN_ASKED, _UNSURE = 50, 0.1
_TRIES = 3
_BRIEF, _LISTED = 20, 4


class Turn(IntEnum):
    """Whether a thread has a processor at a check. A turn is the time from its switch onto a processor to its
    switch off it.
    """

    UNKNOWN = 0  # the kernel does not report it (CONFIG_SCHED_DEBUG before Linux 6.15)
    RUNNING = 1  # on another processor than the sampler
    DISPLACED = 2  # by the sampler
    LEFT = 3  # it fell asleep, and the sampler began when it left
    WAITING = 4  # for a processor, or for something else


def read_turn_ns(sched: bytes) -> int:
    """Return when a thread last got or left a processor, from its /proc/TID/sched, in ns of the processor's
    clock.

    Raises:
        ValueError: The file has no such line.
    """
    begin = sched.index(b":", sched.index(b"\nse.exec_start")) + 1
    return int(sched[begin : sched.index(b"\n", begin)].replace(b".", b""))


def read_turn_counts(sched: bytes) -> tuple[int, int]:
    """Return (number of times that a thread left a processor, number of those at which it began to wait),
    from its /proc/TID/sched.

    Raises:
        ValueError: The file has no such lines.
    """
    ended = sched.index(b":", sched.index(b"\nnr_switches")) + 1
    waits = sched.index(b":", sched.index(b"\nnr_voluntary_switches", ended)) + 1
    return int(sched[ended : sched.index(b"\n", ended)]), int(sched[waits : sched.index(b"\n", waits)])


def _shorten_slice() -> None:
    """Request scheduler time slices of 0.1 ms for the sampler, the kernel's minimum.

    From Linux 6.12 on, a waking thread may then preempt a running one without any privilege. Earlier kernels
    ignore the request.
    """
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice, reset_on_fork = os.getpriority(os.PRIO_PROCESS, 0), 1
        sched_setattr(struct.pack("=IIQiIQQQ", 48, 0, reset_on_fork, nice, 0, 100_000, 0, 0))


class OnCpuTurns:
    """A tracker of which threads run on a processor, and which one the sampler took its processor from.

    The sampler takes a processor by waking up at a sampling time: the scheduler then preempts ("displaces") the thread
    that ran there.

    Attributes:
        visited: Processors to which the sampler is pinned one after the other, one for each sampling time ("a visit").
            Empty while the sampler may run anywhere.
        own: Descriptor of the sampler's /proc/.../sched, or -1 if the kernel's counts of context switches are
            not used.
    """

    def __init__(self, ptrace: PtraceCalls, alone: bool, may_visit: bool) -> None:
        """Create a tracker that reads nothing before start_turns().

        Args:
            ptrace: System calls of the sampler.
            alone: True if no other collector samples between two sampling times.
            may_visit: True if the sampler may be pinned to one processor after the other. It then needs one sampling
                time for each processor in a sampling period, which a limit on overhead does not permit.
        """
        self._alone = alone
        self._may_visit = may_visit
        self.visited: tuple[int, ...] = ()
        self._ptrace = ptrace
        self.own = -1
        self._allowed: set[int] = set()
        self._began_ns = -1
        self._is_read = self._is_wanted = False
        self._asked = self._unsure = self._visits = 0

    def start_turns(self) -> None:
        """Start to use the kernel's counts of context switches, in the thread that samples. Nothing happens
        if that is not the process's main thread.
        """
        if not self._alone or threading.get_native_id() != os.getpid():
            return
        _shorten_slice()
        with contextlib.suppress(OSError):
            self.own = os.open("/proc/thread-self/sched", os.O_RDONLY | os.O_CLOEXEC)
            self._allowed = os.sched_getaffinity(0)

    def make_ready(self) -> None:
        """Prepare the sampler for the sleep until a sampling time: pin it to the next processor, and raise its
        priority.
        """
        if self.visited:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, (self.visited[self._visits // _STAY % len(self.visited)],))
        self.raise_priority()

    def raise_priority(self) -> None:
        """Raise the sampler's priority before a sleep that may end at a sampling time.

        A sampler that is late or displaced during its round sees less of the threads on its processor than of others.
        """
        if self.own >= 0:
            self._ptrace.raise_priority()

    def note_arrival(self) -> None:
        """Note that a sampling time has come: the sampler has slept and has a processor again.

        The time at which the sampler got its processor is read at once if the last round needed it, because a
        tick of the kernel's timer changes the number. Most rounds do not need it.
        """
        self._visits += 1
        self._is_read = False
        if self._is_wanted or self.visited:
            self._read_own()
        self._is_wanted = False

    def _read_own(self) -> None:
        self._is_read, self._began_ns = True, -1
        with contextlib.suppress(OSError, ValueError):
            self._began_ns = read_turn_ns(os.pread(self.own, 4096, 0))

    def _has_displaced(self, at_ns: int) -> bool:
        """Return True if a thread that left its processor at this time did so because the sampler took the
        processor.
        """
        self._is_wanted = True
        if not self._is_read:
            self._read_own()
        return at_ns == self._began_ns

    @property
    def turn_start_ns(self) -> int | None:
        """The time at which the sampler got its processor for this round; -1 if the kernel does not report it, None if
        it was not read.
        """
        return self._began_ns if self._is_read else None

    @property
    def is_wanted(self) -> bool:
        """True if the last round needed the time at which the sampler got its processor."""
        return self._is_wanted

    def set_turn(self, is_read: bool, began_ns: int, is_wanted: bool) -> None:
        """Set what the compiled sampling loop knows about the sampler's own processor time, after its round.

        Args:
            is_read: True if the loop has read when the sampler got its processor.
            began_ns: That time in ns of the processor's clock.
            is_wanted: True if the round needed that time.
        """
        self._is_wanted = is_wanted
        self._is_read, self._began_ns = is_read, began_ns or -1

    def count_checks(self, thread: Thread, checks: int, waiting: int) -> None:
        """Add checks of a thread by the compiled sampling loop to the counts that decide whether the sampler
        is pinned to one processor after the other. A thread that rarely leaves its processor is not counted.

        Args:
            thread: The checked thread.
            checks: Number of checks.
            waiting: Number of checks at which the thread waited for a processor.
        """
        if not thread.steadiness.steady:
            self._asked += checks
            self._unsure += waiting

    def end_turn(self) -> None:
        """Allow the sampler to run on all processors after a round of samples, if it was pinned to one."""
        if self.visited:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._allowed)

    def find_turn(self, thread: Thread, schedstat: bytes, asleep: bool = False) -> Turn:
        """Find out from the kernel's counts of context switches whether a thread has a processor.

        In the usual case the thread has got a processor once more often than it has left one, so it runs. Then nothing
        else is read.

        Args:
            thread: The thread to check.
            schedstat: The thread's schedstat, which was just read.
            asleep: True if the thread sleeps.

        Raises:
            ProcessLookupError: The thread has ended.
        """
        if self.own < 0:
            return Turn.UNKNOWN
        for _ in range(_TRIES):
            ran_ns, _, arrivals = map(int, schedstat.split())
            sched = thread.read_sched()
            try:
                departures, waits = read_turn_counts(sched)
                thread.steadiness.learn(ran_ns, waits)
                if arrivals - departures == 1:
                    return Turn.RUNNING
                at_ns = read_turn_ns(sched)
            except ValueError:
                return Turn.UNKNOWN
            if self._has_displaced(at_ns):
                return Turn.LEFT if asleep else Turn.DISPLACED
            if self._began_ns < 0:
                return Turn.UNKNOWN
            schedstat = thread.read_schedstat()
            if int(schedstat.split()[2]) == arrivals:
                thread.waited = schedstat
                break
        return Turn.WAITING

    def is_due(self, thread: Thread, schedstat: bytes) -> bool:
        """Return True if a runnable thread should be sampled now: it has a processor, or its processor share
        says so if that is unknown.

        Raises:
            ProcessLookupError: The thread has ended.
        """
        turn = self.find_turn(thread, schedstat)
        if turn is Turn.UNKNOWN:
            return thread.share.is_due(schedstat)
        runs, steady = turn in (Turn.DISPLACED, Turn.RUNNING), thread.steadiness.steady
        if not steady:
            self._asked += 1
            self._unsure += not runs
        if self.visited and steady:
            return runs and self.is_for_steady
        return turn is Turn.DISPLACED or (runs and not self.visited)

    @property
    def must_search(self) -> bool:
        """True if a round must begin with a search for the thread from which the sampler took its processor.

        An idle processor takes over such a thread, mostly before all threads are checked. A sampler with raised
        priority displaces enough threads without a search.
        """
        return bool(self.visited) and not self._ptrace.raises_priority and self._began_ns >= 0

    def is_displaced(self, sched: bytes) -> bool:
        """Return True if a thread lost its processor to the sampler, according to its /proc/TID/sched file."""
        try:
            return read_turn_ns(sched) == self._began_ns
        except ValueError:
            return False

    def has_run_until_turn(self, thread: Thread, schedstat: bytes) -> bool:
        """Return True if a sleeping thread ran until the sampler took its processor.

        This is used only if the sampler has raised priority. A sampler without priority is often late, and
        most threads have then just fallen asleep.

        Raises:
            ProcessLookupError: The thread has ended.
        """
        return (
            bool(self.visited)
            and self._ptrace.raises_priority
            and self.find_turn(thread, schedstat, asleep=True) is Turn.LEFT
        )

    def count_asleep(self) -> None:
        """Count a thread that seemed to run when it was checked but was asleep before it stopped. If there
        are many, the sampler is pinned to one processor after the other.
        """
        self._unsure += 1

    @property
    def is_for_steady(self) -> bool:
        """True if this round also samples threads that rarely leave their processor, on whatever processor
        they run. It is True once for each cycle of visits to all processors.
        """
        return not self.visited or self._visits % len(self.visited) == 0

    @property
    def must_list(self) -> bool:
        """True if this round lists all child processes, although it begins with a search for the thread from
        which the sampler took its processor.
        """
        return not self.must_search or self._visits % _LISTED == 0

    def start_visit(self, pids: Iterable[int], brief: int) -> bool:
        """Begin to pin the sampler to one processor after the other, if that gives better samples and is possible.

        Args:
            pids: The sampled processes.
            brief: Number of processes that ended before they could be read.

        Returns:
            True if the sampler now visits the processors in turn.
        """
        unsure = self._asked >= _MIN_ASKED and self._unsure >= _UNSURE * self._asked
        short = brief >= _BRIEF and not self._ptrace.raises_priority
        if self.visited or not self._may_visit or not (unsure or short):
            return False
        self._asked = self._unsure = 0
        there: set[int] = set()
        for pid in pids:
            with contextlib.suppress(OSError):
                there |= os.sched_getaffinity(pid)
        if there <= self._allowed and len(self._allowed) <= MAX_VISITED:
            self.visited = tuple(sorted(self._allowed))
        return bool(self.visited)

    def close(self) -> None:
        self.end_turn()
        self.visited = ()
        if self.own >= 0:
            os.close(self.own)
        self.own = -1
