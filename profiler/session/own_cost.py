"""What this process of pyprof has cost so far."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.libc import trim_heap
from pyprof.objfile.opener import current


class OwnCost(NamedTuple):
    cpu_s: float
    """Processor time, user and system."""
    max_rss_kb: int
    """The most memory that was resident, in KiB: the kernel's VmHWM. Not getrusage's ru_maxrss, which begins with
    that of the process that started the program: it is kept through fork and exec."""


_LATELY_S = 5.0
_TRIMMED_S = 10.0


def own_cost() -> OwnCost:
    return OwnCost(_cpu_s(), _max_rss_kb())


class RecentCost:
    """own_cost() for those who ask often: what was most resident is read seldom."""

    def __init__(self) -> None:
        self._max_rss_kb = 0
        self._read_at = 0.0

    def __call__(self) -> OwnCost:
        if (now := time.monotonic()) >= self._read_at:
            self._max_rss_kb, self._read_at = _max_rss_kb(), now + _LATELY_S
        return OwnCost(_cpu_s(), self._max_rss_kb)


class OwnHeap:
    """Memory that this process has had, and does not use any more.

    Arrays of all sizes come and go in several threads, each with a heap of its own. What stays for a while lies between
    them, so that a heap never becomes smaller by itself: an agent had grown by half after some hundred windows, of
    which nothing was left.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def trim(self, drop: Callable[[], None] = lambda: None) -> None:
        """Between two pieces of work. It takes some milliseconds, and is done seldom. drop: called before, where it is
        done: lets go what can be read again.
        """
        if (now := time.monotonic()) >= self._due:
            self._due = now + _TRIMMED_S
            drop()
            trim_heap(0)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _max_rss_kb() -> int:
    try:
        words = procfs.parse_status(current().about(os.getpid(), "status")).get("VmHWM", "0").split()
    except OSError:  # what could open it is gone
        words = ["0"]
    return int(words[0])
