"""Processor time and memory of this process, and the return of its free heap memory to the kernel."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

from pyprof.collectors.linux import procfs
from pyprof.collectors.linux.libc import trim_heap
from pyprof.objfile.untrusted_file_access import current_opener


class OwnCost(NamedTuple):
    cpu_s: float
    """Processor time of this process, user and system, in seconds."""
    max_rss_kb: int
    """Peak resident memory of this process in KiB: the kernel's VmHWM.

    It is not ru_maxrss of getrusage, which is kept through fork and exec: it begins with the value of the process that
    started the program.
    """


_LATELY_S = 5.0
_TRIMMED_S = 10.0


def own_cost() -> OwnCost:
    return OwnCost(_cpu_s(), _max_rss_kb())


class RecentCost:
    """The processor time and peak memory of this process, for frequent calls. The peak memory is read only every few
    seconds.
    """

    def __init__(self) -> None:
        self._max_rss_kb = 0
        self._read_at = 0.0

    def __call__(self) -> OwnCost:
        if (now := time.monotonic()) >= self._read_at:
            self._max_rss_kb, self._read_at = _max_rss_kb(), now + _LATELY_S
        return OwnCost(_cpu_s(), self._max_rss_kb)


class OwnHeap:
    """The heap of this process, whose free memory is returned to the kernel from time to time.

    Several threads allocate and free arrays of all sizes, each in a separate heap. Long-lived objects lie between them,
    so a heap never shrinks by itself. Without this, the memory of an agent grew by half within some hundred windows.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def trim(self, drop: Callable[[], None] = lambda: None) -> None:
        """Return free heap memory of this process to the kernel, unless it was done recently. It takes some
        milliseconds.

        Args:
            drop: Frees caches whose data can be read again. It is called before the heap is trimmed.
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
        words = procfs.parse_status(current_opener().read_status(os.getpid(), "status")).get("VmHWM", "0").split()
    except OSError:  # the file broker that could open the file has ended
        words = ["0"]
    return int(words[0])
