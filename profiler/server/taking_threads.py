"""The threads that read what is sent, and write it: few that want the interpreter, more that wait for the disk."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from pyprof.importers import pprof
from pyprof.importers.builder import LittleWork, MuchWork
from pyprof.server.access import Refused

SMALL = LittleWork(samples=4_000, threads=1_000, unknown=100, calls=10_000, frames=100)
MIDDLE = LittleWork(samples=30_000, threads=2_000, unknown=100, calls=10_000, frames=100)
"""What is read in this process: some 10 ms, and 100 ms."""
_TOGETHER = 8
"""Segments that are written at once: while one waits for the disk another is."""
_SMALL_BYTES = 1 << 18
"""Bytes of a body as it is inflated: one thread reads all of them, for the more threads want the interpreter, the
longer each of their calls of the system takes. Windows of 400 stacks have half as many.
"""
LARGE = 1 << 23
"""Bytes as it is inflated, from which on a body is read elsewhere, one at a time."""
ELSEWHERE = min(os.cpu_count() or 1, 4)
"""Bodies that are much work are read at once, each by another process; large ones one by one."""
_MOST_LARGE, _MOST_WAITING = 4, 64
"""Large bodies of a tenant, and all that other processes are to read, that wait for them."""
MOST_HELD = 1 << 29
"""Bytes of bodies that have begun to come, and of those that wait."""
_RETRY_S = 30
_Read = TypeVar("_Read")
_Kept = TypeVar("_Kept")


def size_of(body: bytes) -> int:
    """As it is inflated."""
    return max(pprof.stated_size(body), len(body))


class TakingThreads:
    """Those that read bodies and keep what they say. However many come that are much work, they hold up no other."""

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
        here: Callable[[LittleWork], _Read] | None,
        elsewhere: Callable[[], _Read],
        keep: Callable[[_Read], _Kept],
    ) -> _Kept:
        """What keep returns of what is read: here, unless it is large, or MuchWork is raised. here: None for what is
        much work in any case. Raises what they raise; Refused where too many wait.
        """
        loop, size = asyncio.get_running_loop(), size_of(body)
        if here is not None and size <= LARGE:
            reader, little = (self._reader, SMALL) if size <= _SMALL_BYTES else (self._middle, MIDDLE)
            with suppress(MuchWork):
                found = await loop.run_in_executor(reader, here, little)
                return await loop.run_in_executor(self._keepers, keep, found)
        threads, most = (self._large, _MOST_LARGE) if size > LARGE else (self._much, _MOST_WAITING)
        with self._wait(tenant, body, most):
            return await loop.run_in_executor(threads, lambda: keep(elsewhere()))

    @contextmanager
    def _wait(self, tenant: str, body: bytes, most: int) -> Iterator[None]:
        """Raises Refused."""
        if self._waiting[tenant] >= most or self._bytes + len(body) > MOST_HELD:
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
        """What has not begun is not done: nobody waits for its answer. Does not wait."""
        for threads in (self._reader, self._middle, self._large, self._much, self._keepers):
            threads.shutdown(wait=False, cancel_futures=True)
