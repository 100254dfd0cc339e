"""Events on threads: one for each thread and processor, whose samples go to that processor's ring.

The kernel wants it so: an event that new threads inherit can have a ring only if it is bound to a processor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyprof.collectors import libc, procfs
from pyprof.collectors.perf_attr import Kind, refusal
from pyprof.collectors.perf_ring import Rings

_ENABLE, _DISABLE, _SET_OUTPUT = 0x2400, 0x2401, 0x2405
_ROUNDS = 20
_FORK_SHOWS_S = 0.001

EVERY_THREAD = -1

Fork = tuple[int, int, int]
"""(time, tid, parent's tid)"""


@dataclass
class EventSet:
    """All events of one stack size.

    since_ns: tid -> monotonic time from which on its children inherit our events.
    """

    event: Kind
    rate_hz: float
    stack_size: int
    rings: Rings
    since_ns: dict[int, int] = field(default_factory=dict)
    _fds: dict[int, list[int]] = field(default_factory=dict)

    def attach(self, pids: Iterable[int], forks: Callable[[], list[Fork]]) -> None:
        """Events on all threads of processes. A thread that is born meanwhile inherits its parent's events if these
        were there before it, else it gets its own; forks (all that were reported so far) tell which.

        Raises PerfNotAllowed; ProcessLookupError if nothing is left to attach to.
        """
        pids = list(pids)
        for turn in range(_ROUNDS):
            fresh = [tid for pid in pids for tid in _tasks(pid) if tid not in self.since_ns]
            if turn and fresh:
                time.sleep(_FORK_SHOWS_S)
                self._inherit(forks())
            for tid in fresh:
                if tid not in self.since_ns:
                    self._open(tid)
            if not fresh:
                break
        if not self.since_ns:
            raise ProcessLookupError(*pids[:1])

    def attach_machine(self) -> None:
        """Events on every thread of the machine, those to come included. Raises PerfNotAllowed."""
        attr = self.event.attr(self.rate_hz, self.stack_size, EVERY_THREAD)
        for cpu, owner in self.rings.owners.items():
            fd = libc.perf_event_open(attr, EVERY_THREAD, cpu)
            if -fd == errno.ENODEV:
                continue
            if fd < 0:
                raise refusal(-fd, EVERY_THREAD)
            self._fds.setdefault(EVERY_THREAD, []).append(fd)
            fcntl.ioctl(fd, _SET_OUTPUT, owner)

    def _inherit(self, forks: list[Fork]) -> None:
        for at, tid, parent in sorted(forks):
            if tid not in self.since_ns and self.since_ns.get(parent, at + 1) <= at:
                self.since_ns[tid] = at

    def _open(self, tid: int) -> None:
        attr = self.event.attr(self.rate_hz, self.stack_size, tid)
        mine: list[int] = []
        for cpu, owner in self.rings.owners.items():
            fd = libc.perf_event_open(attr, tid, cpu)
            if -fd == errno.ENODEV:  # the processor went offline
                continue
            if fd < 0:
                for other in mine:
                    os.close(other)
                if -fd == errno.ESRCH:
                    return
                raise refusal(-fd, tid)
            mine.append(fd)
            fcntl.ioctl(fd, _SET_OUTPUT, owner)
        self._fds[tid] = mine
        self.since_ns[tid] = time.monotonic_ns()

    def owns(self, tid: int) -> bool:
        """Are there events on this very thread, not inherited ones?"""
        return tid in self._fds

    def switch(self, tids: Iterable[int], on: bool) -> None:
        """Stop the events of threads for a while, and of those that inherited them; or let them go on."""
        for fd in itertools.chain.from_iterable(self._fds.get(tid, ()) for tid in tids):
            with contextlib.suppress(OSError):
                fcntl.ioctl(fd, _ENABLE if on else _DISABLE, 0)

    def close(self) -> None:
        """End these events, also where they were inherited."""
        for fd in itertools.chain.from_iterable(self._fds.values()):
            with contextlib.suppress(OSError):  # a forked writer of an earlier window may hold it open
                fcntl.ioctl(fd, _DISABLE, 0)
            os.close(fd)
        self._fds.clear()


def _tasks(pid: int) -> list[int]:
    try:
        return procfs.tasks(pid)
    except OSError:
        return []
