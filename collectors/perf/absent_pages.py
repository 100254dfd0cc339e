"""Page-in of stack pages that a thread has never written: the kernel's copy ends at the first of them.

The kernel copies in an interrupt, where it cannot wait for a page fault. A frame with a large, mostly unused buffer has
such pages (16 KB in memcached). A read from outside makes the kernel map its zero page there, which costs the target no
memory. Later copies are complete. A page that was swapped out returns too, and may leave again.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

import numpy as np

from pyprof.collectors.base import Feedback
from pyprof.collectors.linux import procfs

_PAGE = mmap.PAGESIZE
_MAX_READ_PAGES = 1 << 14
_MIN_REREAD_NS = 10_000_000_000
"""Minimum time between two forced page-ins of one page, because the machine may be short of memory."""


class AbsentPages:
    """A reader of pages at which the kernel's copies ended too early; `most` is the copy size in bytes."""

    def __init__(self, most: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._most = np.uint64(most)
        self._clock = clock
        self._read: dict[tuple[int, int], int] = {}

    def learn(self, feedback: Feedback) -> None:
        """Read the pages between the end of each copy and the word that its walk needed, if the copy ended early at a
        page boundary.
        """
        batch, missing = feedback.batch, feedback.missing
        base = batch.stack.base
        end = base + batch.stack.size.astype(np.uint64)
        cut = (missing >= end) & (missing - base < self._most) & (end % np.uint64(_PAGE) == 0)
        for pid, first, last in {*zip(batch.pid[cut].tolist(), end[cut].tolist(), missing[cut].tolist(), strict=True)}:
            self.read_pages(pid, first, last)

    def read_pages(self, pid: int, first: int, last: int) -> None:
        """Read one byte of each page from `first` to `last`, except for pages that were read recently."""
        if len(self._read) > _MAX_READ_PAGES:
            self._read.clear()
        read, now = procfs.make_memory_reader(pid), self._clock()
        for page in range(first, last + 1, _PAGE):
            if self._read.get((pid, page), -_MIN_REREAD_NS) + _MIN_REREAD_NS <= now:
                self._read[pid, page] = now
                read(page, 1)


__all__ = ["AbsentPages"]
