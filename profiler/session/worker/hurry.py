"""The worker is out of time: what it computes ends, wherever it is, and it goes on with what it has.

The sampler says so by a signal, for a reader of files has loops of all kinds, and none asks the time. The signal ends
what was begun by Hurry.unless_late(), and nothing else: the stacks of a batch are whole or not begun. What is done
while nothing else is wanted, Hurry.meanwhile(), ends by a signal of its own, or after some time.

A worker whose sampler is gone hears of nothing in such a loop. So a thread looks (end_with): what there is for a sink
is written, without further names; without a sink the worker ends at once.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

SIGNAL = signal.SIGUSR2
"""Not SIGUSR1, which somebody may give all processes of that name to have a recording written out."""
AT_ONCE = signal.SIGRTMIN + 1
"""The same, and what has come is not even unwound."""
UNWOUND_S = 0.2
"""Processor time after the first signal in which what has come already is unwound, in seconds."""
WANTED = signal.SIGPROF
"""Something else is to be done. The worker's own clock says so, too."""
MEANWHILE_S = 2.0
"""Most processor time of one step of what is done meanwhile."""
_AGAIN_S = 0.05
ORPHAN_S = 10.0
"""So long a worker whose sampler is gone names what it has for a sink."""


class WorkerOutOfTime(BaseException):
    """Never leaves Hurry.unless_late(). No Exception: readers that tolerate what is broken do not tolerate this."""


_exchanges: list[None] = []


@contextmanager
def exchange() -> Iterator[None]:
    """A question and its answer, of any thread: neither is left without the other. The signal comes again."""
    _exchanges.append(None)
    try:
        yield
    finally:
        _exchanges.pop()


class Hurry:
    """Of this process. late: no time is left. too_late: nor for stacks that have come already, unwound_s later.
    wanted: nothing is done meanwhile any more.
    """

    def __init__(self) -> None:
        self.late = False
        self.wanted = False
        self.unwound_s = UNWOUND_S
        self._too_late_at = math.inf
        self._inside = False
        self._meanwhile = False

    def obey(self) -> None:
        """From now on the signal is listened to. Only in the main thread."""
        signal.signal(SIGNAL, self._hurry)
        signal.signal(AT_ONCE, self._hurry)
        signal.signal(WANTED, self._want)

    @property
    def too_late(self) -> bool:
        return time.process_time() >= self._too_late_at

    def _hurry(self, number: int, *_: object) -> None:
        self.late = True
        self._too_late_at = min(self._too_late_at, time.process_time() + (0 if number == AT_ONCE else self.unwound_s))
        if self._inside and not _exchanges:
            raise WorkerOutOfTime

    def _want(self, *_: object) -> None:
        self.wanted = True
        if self._meanwhile and not _exchanges:
            raise WorkerOutOfTime

    def meanwhile(self, job: Callable[[], T], most_s: float = MEANWHILE_S) -> T | None:
        """None where it was left: something else is wanted, or it took too long. Then nothing more is done so."""
        try:
            try:
                signal.setitimer(signal.ITIMER_PROF, most_s, _AGAIN_S)
                self._meanwhile = not self.wanted
                return self.unless_late(job) if self._meanwhile else None
            finally:
                self._meanwhile = False
                signal.setitimer(signal.ITIMER_PROF, 0)
        except WorkerOutOfTime:
            return None

    def unless_late(self, job: Callable[[], T]) -> T | None:
        """None where there was no time for it. The job must leave what it works on as good as new, or not at all."""
        try:
            try:
                self._inside = not self.late
                return job() if self._inside else None
            finally:
                self._inside = False
        except WorkerOutOfTime:
            return None


def end_with(sampler: int, has_left: Callable[[], bool]) -> None:
    """For a thread of the worker's. Returns never. sampler: its parent; has_left: is there anything for a sink?"""
    while os.getppid() == sampler:
        time.sleep(_AGAIN_S)
    until, main = time.monotonic() + ORPHAN_S, threading.main_thread().ident
    assert main is not None, "it has been started"
    while has_left():
        time.sleep(_AGAIN_S)
        if time.monotonic() > until:
            signal.pthread_kill(main, SIGNAL)
    os._exit(1)
