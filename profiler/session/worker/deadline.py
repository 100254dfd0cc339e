"""Deadlines in the worker: signals that interrupt its computation wherever it is.

The sampler sends the signals, because readers of files have many kinds of loops and none of them checks the time. A
signal interrupts only what WorkDeadline.unless_late() has started, so the stacks of a batch are either complete or not
started. Background work (WorkDeadline.meanwhile()) is interrupted by a separate signal, or after some processor time.

A worker whose sampler has ended receives no signal. So a thread polls for that (end_with). If the worker has data for a
sink, it resolves names for ORPHAN_S at most and writes the data. Without a sink it exits at once.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

SIGNAL = signal.SIGUSR2
"""Signal for the deadline of the worker. It is not SIGUSR1, which a user may send to all pyprof processes to save a
recording.
"""
AT_ONCE = signal.SIGRTMIN + 1
"""Signal for an immediate deadline of the worker, after which it unwinds no more batches, not even those that have
arrived.
"""
UNWOUND_S = 0.2
"""Processor time, in seconds, for which the worker continues to unwind batches that have arrived when the deadline's
signal comes.
"""
WANTED = signal.SIGPROF
"""Signal that ends background work of the worker, because the sampler waits. The worker's ITIMER_PROF timer sends it,
too.
"""
MEANWHILE_S = 2.0
"""Maximum processor time of one step of the worker's background work, in seconds."""
RESERVE_S = 0.2
"""Processor time, in seconds, in which the worker still reads symbol tables after its deadline, if unwinding took all
the time before.
"""
_AGAIN_S = 0.05
ORPHAN_S = 10.0
"""Maximum time in which a worker whose sampler has ended resolves names for a sink, in seconds."""


class EndUrgency(IntEnum):
    """The urgency with which a recording ends: how much work is still done. A later request can only be more urgent."""

    PATIENT = 0
    """All targets have ended by themselves: the names may take a minute."""
    PROMPT = 1
    """The user waits: the samples that have arrived are unwound, and names are resolved for less than a second."""
    IMMEDIATE = 2
    """The samples that have arrived are written with the names that are already resolved."""
    ABANDON = 3
    """The worker is killed, and what was not written is lost."""


class WorkerOutOfTime(BaseException):
    """The worker's deadline has passed. This exception never leaves WorkDeadline.unless_late().

    It is not an Exception, because readers that tolerate broken files must not swallow it.
    """


_exchanges: list[None] = []
_WEAK_REFERENCES = ("weakref", "_weakrefset")
"""Modules of the standard library that define callbacks of weak references. Python only prints an exception that is
raised in such a callback, so the deadline's exception must not be raised there.
"""


@contextmanager
def exchange() -> Iterator[None]:
    """Return a context manager for a request to the file broker. While it waits for the response, in any thread, the
    signals of the worker's deadline are deferred.

    A deferred signal is not lost, because the sampler sends it again.
    """
    _exchanges.append(None)
    try:
        yield
    finally:
        _exchanges.pop()


def _can_raise(frame: FrameType | None) -> bool:
    """Return True if an exception that the signal handler raises at the interrupted frame will end the job.

    Python only prints exceptions in a finalizer and in a callback of a weak reference. The sampler or the timer repeats
    the signal.
    """
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_globals.get("__name__") in _WEAK_REFERENCES:
            return False
        frame = frame.f_back
    return not _exchanges


class WorkDeadline:
    """The deadline of the worker process, set by signals.

    Attributes:
        late: True after the deadline.
        wanted: True if background work must not run any more.
        unwound_s: Processor time after the deadline in which batches are still unwound, in seconds.
    """

    def __init__(self) -> None:
        self.late = False
        self.wanted = False
        self.unwound_s = UNWOUND_S
        self._too_late_at = math.inf
        self._inside = False
        self._in_background = False
        self._at_once = False

    def obey(self) -> None:
        """Install the signal handlers for the worker's deadline. Only the main thread may call this."""
        signal.signal(SIGNAL, self._on_deadline)
        signal.signal(AT_ONCE, self._on_deadline)
        signal.signal(WANTED, self._want)

    @property
    def too_late(self) -> bool:
        return time.process_time() >= self._too_late_at

    def _on_deadline(self, number: int, frame: FrameType | None) -> None:
        self.late = True
        self._too_late_at = min(self._too_late_at, time.process_time() + (0 if number == AT_ONCE else self.unwound_s))
        self._at_once |= number == AT_ONCE
        if (self._inside or (self._in_background and self._at_once)) and _can_raise(frame):
            raise WorkerOutOfTime

    def _want(self, _: int, frame: FrameType | None) -> None:
        self.wanted = True
        if self._in_background and _can_raise(frame):
            raise WorkerOutOfTime

    def meanwhile(self, job: Callable[[], T], most_s: float = MEANWHILE_S) -> T | None:
        """Run background work in the worker until the sampler waits for the worker or the time limit is reached.

        Args:
            job: Function that does the work.
            most_s: Maximum processor time in seconds.

        Returns:
            The result of the job, or None if it was interrupted or not started.
        """
        return self._run_limited(lambda: self.unless_late(job), most_s, lambda: not self.wanted)

    def in_reserve(self, job: Callable[[], T]) -> T | None:
        """Run a short job after the worker's deadline has passed, for at most RESERVE_S of processor time. The job is
        not started if the deadline is an immediate one.

        Returns:
            The result of the job, or None if it was interrupted or not started.
        """
        return self._run_limited(job, RESERVE_S, lambda: not self._at_once)

    def _run_limited(self, job: Callable[[], T | None], limit_s: float, is_allowed: Callable[[], bool]) -> T | None:
        try:
            try:
                signal.setitimer(signal.ITIMER_PROF, limit_s, _AGAIN_S)
                self._in_background = is_allowed()
                return job() if self._in_background else None
            finally:
                self._in_background = False
                signal.setitimer(signal.ITIMER_PROF, 0)
        except WorkerOutOfTime:
            return None

    def unless_late(self, job: Callable[[], T]) -> T | None:
        """Run a job in the worker until the deadline. An interrupted job must not leave shared data half updated.

        Returns:
            The result of the job, or None if it was interrupted or not started.
        """
        try:
            try:
                self._inside = not self.late
                return job() if self._inside else None
            finally:
                self._inside = False
        except WorkerOutOfTime:
            return None


def end_with(sampler: int, has_left: Callable[[], bool]) -> None:
    """Wait until the sampler has ended, then end this worker process. Run in a thread; never returns.

    Args:
        sampler: Pid of the parent process.
        has_left: Returns True while the worker has unwritten data for a sink.
    """
    while os.getppid() == sampler:
        time.sleep(_AGAIN_S)
    until, main = time.monotonic() + ORPHAN_S, threading.main_thread().ident
    assert main is not None, "it has been started"
    while has_left():
        time.sleep(_AGAIN_S)
        if time.monotonic() > until:
            signal.pthread_kill(main, SIGNAL)
    os._exit(1)
