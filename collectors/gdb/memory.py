"""The target's memory through a stub: few, large reads, each page requested once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from pyprof.collectors.gdb.stub import Stub
from pyprof.errors import ConnectionLost

PAGE = 4096
_MAX_PAGES = 1 << 14
_RUN = 1 << 16


class PageCache:
    """A memory reader that keeps whole pages, for memory that does not change (code, headers) or for one moment."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._pages: dict[int, bytes] = {}

    def read(self, avma: int, size: int) -> bytes:
        """Return at most `size` bytes of memory at avma, fewer if they are not readable."""
        data = bytearray()
        at = avma & -PAGE
        while at < avma + size:
            page = self._pages.get(at)
            if page is None:
                page = self._fetch(at, avma + size)
            data += page
            if len(page) < PAGE:
                break
            at += PAGE
        return bytes(data[avma & PAGE - 1 :][:size])

    def _fetch(self, start: int, end: int) -> bytes:
        """Read unknown memory pages from `start` up to `end` and return the first one."""
        stop = start + PAGE
        while stop < min(end, start + _RUN) and stop not in self._pages:
            stop += PAGE
        data = self._read(start, stop - start)
        if len(self._pages) > _MAX_PAGES:
            self._pages.clear()
        for offset in range(0, max(len(data), 1), PAGE):
            self._pages[start + offset] = data[offset : offset + PAGE]
        return data[:PAGE]

    def clear(self) -> None:
        self._pages.clear()


class RemoteMemory:
    """The memory of a GDB stub's target; `reachable` is a context that stops the target if necessary."""

    def __init__(self, stub: Stub, mask: int) -> None:
        self.reachable: Callable[[], AbstractContextManager[None]] | None = None
        self.closed = False
        self._owner = os.getpid()
        self._stub = stub
        self._mask = mask
        self._lasting = PageCache(self._now)

    def read(self, avma: int, size: int) -> bytes:
        """Read memory for an AddressSpace, and keep it. The result is b"" once the connection is closed."""
        if not 0 <= avma <= self._mask:
            return b""
        return self._lasting.read(avma, min(size, self._mask + 1 - avma))

    def read_current(self, avma: int, size: int) -> bytes:
        """Read the target's current memory. The caller must ensure that it is readable."""
        return self._stub.read_memory(avma, min(size, self._mask + 1 - avma)) if 0 <= avma <= self._mask else b""

    def make_page_cache(self) -> PageCache:
        """Return a cache of memory pages for following pointers while the target's memory is readable."""
        return PageCache(self.read_current)

    def forget_pages(self) -> None:
        """Drop the cached memory pages because the mappings have changed."""
        self._lasting.clear()

    def _now(self, avma: int, size: int) -> bytes:
        # a forked child writes files; the connection belongs to its parent
        if self.closed or os.getpid() != self._owner:
            return b""
        try:
            if self.reachable is None:
                return self._stub.read_memory(avma, size)
            with self.reachable():
                return self._stub.read_memory(avma, size)
        except ConnectionLost:
            self.closed = True
            return b""
