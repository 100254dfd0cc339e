"""Threads that read and write incoming segments: few that need the GIL, and more that wait for the disk."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from pyprof.importers import pprof
from pyprof.importers.profile_builder import WorkLimit, WorkLimitExceeded
from pyprof.server.authorization import Refused

SMALL = WorkLimit(samples=4_000, threads=1_000, unknown=100, calls=10_000, frames=100)
MIDDLE = WorkLimit(samples=30_000, threads=2_000, unknown=100, calls=10_000, frames=100)
"""Limits for the work on a request body in the server's own process: about 10 ms and 100 ms of work."""
_TOGETHER = 8
"""Number of received segments that are written at once, so that one is written while another waits for the disk."""
_SMALL_BYTES = 1 << 18
"""Maximum inflated size in bytes of request bodies that one thread reads. With more threads that need the GIL, each of
their system calls takes longer. Windows of 400 stacks are half as large.
"""
LARGE = 1 << 23
"""Inflated size in bytes from which a request body is read in another process, one at a time."""
ELSEWHERE = min(os.cpu_count() or 1, 4)
"""Number of expensive request bodies that are read at once, each by another process."""
_MAX_LARGE, _MAX_WAITING = 4, 64
"""Maximum number of a tenant's large request bodies, and of its other expensive bodies, that wait for a process."""
MAX_HELD = 1 << 29
"""Maximum size in bytes of request bodies that are arriving or waiting."""
_RETRY_S = 30
_Read = TypeVar("_Read")
_Kept = TypeVar("_Kept")


def size_of(body: bytes) -> int:
    """Return the inflated size of a request body in bytes."""
    return max(pprof.read_stated_size(body), len(body))


class IngestThreads:
    """The threads that read and store received segments. Expensive bodies never delay others."""

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, "pyprof read")
        self._middle = ThreadPoolExecutor(1, "pyprof middle")
        self._large = ThreadPoolExecutor(1, "pyprof large")
        self._much = ThreadPoolExecutor(ELSEWHERE, "pyprof much")
        self._keepers = ThreadPoolExecutor(_TOGETHER, "pyprof keep")
        self._waiting: Counter[str] = Counter()
        self._bytes = 0

    async def run(
        self,
        tenant: str,
        body: bytes,
        here: Callable[[WorkLimit], _Read] | None,
        elsewhere: Callable[[], _Read],
        keep: Callable[[_Read], _Kept],
    ) -> _Kept:
        """Read a request body and store the result, in this process or, for large or expensive bodies, in another one.

        Args:
            here: Reads in this process; raises WorkLimitExceeded if that is too expensive. None to always use another
            process.
            elsewhere: Reads in another process.
            keep: Stores what was read.

        Returns:
            The result of keep.

        Raises:
            Refused: Too many bodies wait; or what the functions raise.
        """
        loop, size = asyncio.get_running_loop(), size_of(body)
        if here is not None and size <= LARGE:
            reader, little = (self._reader, SMALL) if size <= _SMALL_BYTES else (self._middle, MIDDLE)
            with suppress(WorkLimitExceeded):
                found = await loop.run_in_executor(reader, here, little)
                return await loop.run_in_executor(self._keepers, keep, found)
        threads, most = (self._large, _MAX_LARGE) if size > LARGE else (self._much, _MAX_WAITING)
        with self._wait(tenant, body, most):
            return await loop.run_in_executor(threads, lambda: keep(elsewhere()))

    @contextmanager
    def _wait(self, tenant: str, body: bytes, most: int) -> Iterator[None]:
        """Count a request body as waiting; raise Refused if too many wait."""
        if self._waiting[tenant] >= most or self._bytes + len(body) > MAX_HELD:
            text = (
                f"{self._waiting[tenant]} bodies that are much work wait of the tenant, {most} at most, or others' do"
            )
            raise Refused("too_many_requests", text, _RETRY_S)
        self._waiting[tenant] += 1
        self._bytes += len(body)
        try:
            yield
        finally:
            self._waiting[tenant] -= 1
            self._bytes -= len(body)

    def close(self) -> None:
        """Cancel the reading of bodies that has not begun, without waiting: no client waits for its response any
        more.
        """
        for threads in (self._reader, self._middle, self._large, self._much, self._keepers):
            threads.shutdown(wait=False, cancel_futures=True)
