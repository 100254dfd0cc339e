"""The number of stack bytes that the kernel copies, and page-in of stack pages at which its copies end.

At first the size is what the rings have room for. Later it is what the walks of stacks needed, and some more.
All threads of a recording have one size, because the size belongs to the event, which new threads inherit.

The kernel copies in an interrupt, where it cannot wait for a page fault: the copy ends at the first page that the
thread has never written. A frame with a large, mostly unused buffer has such pages (16 KB in memcached). A read from
outside makes the kernel map its zero page there, which costs the target no memory. Later copies are complete. A page
that was swapped out returns too, and may leave again.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import Feedback
from pyprof.collectors.linux import procfs
from pyprof.collectors.perf.event_attributes import MOST_STACK
from pyprof.collectors.perf.ring_buffer_records import MIN_RING, OVERHEAD
from pyprof.options import HOLD, CollectOptions

BATCH = 2000
"""Number of samples of one thread for which a perf ring buffer has room, and after which it is read as one batch."""
SLACK_S = 0.1

_MAX_RING = 16 << 20
_MAX_RINGS = 32 << 20
_MIN_BYTES = 2048
_FAR = 4
"""Distance of a word from the start of a stack copy, in multiples of the longest copy, from which on the word
must be in another stack.
"""
_SURE_AFTER = 256
_LIKELY_AFTER, _LIKELY_ROOM = 8, 4
_LIMIT_INTERVAL_NS = 100_000_000
"""Minimum time between two reductions of the copy size because of lost records, in nanoseconds.

Records of the larger size may still be in the rings.
"""
_LOSSLESS_NS = 10_000_000_000
"""Time in nanoseconds without lost records after which stack copies may be twice as large."""


class StackSize:
    """The number of stack bytes that the kernel copies for each sample.

    Attributes:
        bytes: The current size in bytes.
        most: Maximum size in bytes.
    """

    def __init__(self, max_bytes: int, first: int) -> None:
        """Choose the first size of stack copies.

        Args:
            max_bytes: The limit in bytes.
            first: Size in bytes until walks have shown what they need. Lost records never make the size
                smaller than this.
        """
        self.most = max_bytes
        self.bytes = self._first = min(first, max_bytes)
        self._seen = 0
        self._limit, self._limited_ns = max_bytes, -_LIMIT_INTERVAL_NS
        self._sure_after = _SURE_AFTER
        self._need = 0
        self._short = False

    def learn(self, feedback: Feedback) -> None:
        """Learn from unwound samples how much of each stack must be copied: up to `top`, the highest address that was
        read, or up to `missing` if a copy was too short.
        """
        base = feedback.batch.stack.base
        reach = np.maximum(feedback.top, feedback.missing)
        need = reach[reach > base] - base[reach > base]
        self._seen += len(base)
        if len(need):
            near = need[need < _FAR * self.most]  # words beyond it are in another stack
            self._need = max(self._need, int(near.max()) if len(near) else 0)
        self._short = self._need > self.bytes

    def minimize_size(self) -> None:
        """Make stack copies as small as recent walks permit, because samples will be taken more often. From
        now on few samples are enough evidence for a smaller size.
        """
        self._sure_after = _LIKELY_AFTER
        self.bytes = self.wanted if self._seen >= self._sure_after else max(self._first, self.wanted)

    def limit_size(self, now_ns: int) -> None:
        """Halve the maximum size of later stack copies, because records were lost in full ring buffers.

        A truncated stack keeps its innermost functions, a lost record has none. The limit never becomes
        smaller than the first size, because copies of that size fill a ring buffer slowly.
        """
        if now_ns >= self._limited_ns + _LIMIT_INTERVAL_NS:
            self._limited_ns = now_ns
            self._limit = max(min(self.bytes, self._limit) // 2, self._first)

    def relax_limit(self, now_ns: int) -> None:
        """Double the maximum size of stack copies, which limit_size() has lowered, if no record was lost for
        some time.
        """
        if self._limit < self.most and now_ns >= self._limited_ns + _LOSSLESS_NS:
            self._limited_ns, self._limit = now_ns, min(2 * self._limit, self.most)

    def forget(self) -> None:
        """Forget the learned size of stack copies, because other threads are sampled from now on."""
        self._seen = self._need = 0
        self._short = False

    @property
    def wanted(self) -> int:
        """The number of stack bytes that the walks of recent samples needed, increased by a half."""
        return min(max(_MIN_BYTES, (self._need + self._need // 2 + 1023) & ~1023), self.most, self._limit)

    def choose_change(self) -> int:
        """Return a new size of stack copies in bytes, or 0 to keep the current one.

        The size grows at once, and shrinks when enough samples support that. Large copies fill the rings of a
        busy machine before the profiler gets a processor. The rings also hold copies for other processes on
        the same processors.
        """
        wanted = self.wanted
        if self.bytes > self._limit:
            return self._limit
        if self._short and self.bytes < wanted:
            return min(max(wanted, 2 * self.bytes), self.most, self._limit)
        if self._seen >= self._sure_after and 2 * wanted <= self.bytes:
            return wanted
        if self._seen >= _LIKELY_AFTER and 2 * _LIKELY_ROOM * wanted <= self.bytes:
            return _LIKELY_ROOM * wanted
        return 0

    def set_size(self, size: int) -> None:
        self.bytes = size
        self._short = False


def choose_ring_size(options: CollectOptions, cpus: int) -> int:
    """Return the size in bytes of a perf ring buffer that holds the samples of two batches, limited by the memory for
    all rings.
    """
    wanted = (min(options.rate_hz * HOLD * options.flush_s, BATCH) + 2 * SLACK_S * options.rate_hz) * (OVERHEAD + 8192)
    most = max(min(_MAX_RING, _MAX_RINGS // cpus), MIN_RING)
    size = 8 << 20
    while size < wanted:
        size *= 2
    while size > most:
        size //= 2
    return size


def mask_other_stacks(feedback: Feedback, max_bytes: int = MOST_STACK) -> npt.NDArray[np.bool_]:
    """Return a mask of samples whose walk needed a word so far from the start of the stack copy that the word
    must be in another stack.

    Args:
        feedback: The results of walks of stack copies by the kernel.
        max_bytes: Maximum copy size in bytes.
    """
    missing, base = feedback.missing, feedback.batch.stack.base
    found: npt.NDArray[np.bool_] = (missing > 0) & ((missing < base) | (missing - base >= _FAR * max_bytes))
    return found


def mask_beyond_copy(feedback: Feedback, max_bytes: int = MOST_STACK) -> npt.NDArray[np.bool_]:
    """Return a mask of samples whose walk needed a word that is too far away for any stack copy by the
    kernel.

    Nearer words can be part of a larger copy.

    Args:
        feedback: The results of walks of stack copies by the kernel.
        max_bytes: Maximum copy size in bytes.
    """
    missing, base = feedback.missing, feedback.batch.stack.base
    found: npt.NDArray[np.bool_] = (missing > 0) & ((missing < base) | (missing - base > max_bytes * 7 // 8))
    return found


_PAGE = mmap.PAGESIZE
_MAX_READ_PAGES = 1 << 14
_MIN_REREAD_NS = 10_000_000_000
"""Minimum time in nanoseconds between two forced page-ins of one page, because the machine may be short of memory."""


class AbsentPages:
    """A reader that touches stack pages that are not in memory, so that later stack copies by the kernel do
    not end at these pages. `max_bytes` is the maximum size of a copy.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._most = np.uint64(max_bytes)
        self._clock = clock
        self._read: dict[tuple[int, int], int] = {}

    def learn(self, feedback: Feedback) -> None:
        """Page in the stack pages from the end of each copy to the word that its walk needed, if the copy
        ended early at a page boundary.
        """
        batch, missing = feedback.batch, feedback.missing
        base = batch.stack.base
        end = base + batch.stack.size.astype(np.uint64)
        cut = (missing >= end) & (missing - base < self._most) & (end % np.uint64(_PAGE) == 0)
        for pid, first, last in {*zip(batch.pid[cut].tolist(), end[cut].tolist(), missing[cut].tolist(), strict=True)}:
            self.read_pages(pid, first, last)

    def read_pages(self, pid: int, first: int, last: int) -> None:
        """Page in the pages from `first` to `last` of a process by reading one byte of each, except for pages that were
        read recently.
        """
        if len(self._read) > _MAX_READ_PAGES:
            self._read.clear()
        read, now = procfs.make_memory_reader(pid), self._clock()
        for page in range(first, last + 1, _PAGE):
            if self._read.get((pid, page), -_MIN_REREAD_NS) + _MIN_REREAD_NS <= now:
                self._read[pid, page] = now
                read(page, 1)
