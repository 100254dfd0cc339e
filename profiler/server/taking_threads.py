"""The threads that read what is sent, and write it: few that want the interpreter, more that wait for the disk."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyprof.importers import pprof
from pyprof.server.access import Refused

_TOGETHER = 8
"""Segments that are written at once: while one waits for the disk another is."""
_SMALL = 1 << 18
"""Bytes of a body as it is inflated: one thread reads all of them, for the more threads want the interpreter, the
longer each of their calls of the system takes. Windows of 400 stacks have half as many.
"""
LARGE = 1 << 23
"""Of such ones one is read at a time."""
_MOST_LARGE = 4
"""Of a tenant, that wait to be read."""
MOST_HELD = 1 << 29
"""Bytes of bodies that have begun to come, and of large ones that wait."""
_LARGE_RETRY_S = 30
_Read = TypeVar("_Read")
_Kept = TypeVar("_Kept")


def size_of(body: bytes) -> int:
    """As it is inflated."""
    return max(pprof.stated_size(body), len(body))


class TakingThreads:
    """Those that read bodies and keep what they say. However many large ones come, they hold up no small one: another
    thread reads them, or has them read.
    """

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, "pyprof read")
        self._usual = ThreadPoolExecutor(_TOGETHER, "pyprof keep")
        self._large = ThreadPoolExecutor(1, "pyprof large")
        self._waiting: Counter[str] = Counter()
        self._bytes = 0

    async def run(self, tenant: str, body: bytes, read: Callable[[], _Read], keep: Callable[[_Read], _Kept]) -> _Kept:
        """What keep returns of what read returns. Raises what they raise; Refused where too many large ones wait."""
        loop, size = asyncio.get_running_loop(), size_of(body)
        if size <= _SMALL:
            return await loop.run_in_executor(self._usual, keep, await loop.run_in_executor(self._reader, read))
        if size <= LARGE:
            return await loop.run_in_executor(self._usual, lambda: keep(read()))
        if self._waiting[tenant] >= _MOST_LARGE or self._bytes + len(body) > MOST_HELD:
            text = f"{self._waiting[tenant]} large bodies of the tenant wait, {_MOST_LARGE} at most, or others' do"
            raise Refused("too_many_requests", text, _LARGE_RETRY_S)
        self._waiting[tenant] += 1
        self._bytes += len(body)
        try:
            return await loop.run_in_executor(self._large, lambda: keep(read()))
        finally:
            self._waiting[tenant] -= 1
            self._bytes -= len(body)

    def close(self) -> None:
        """What has not begun is not done: nobody waits for its answer. Does not wait."""
        for threads in (self._reader, self._usual, self._large):
            threads.shutdown(wait=False, cancel_futures=True)
