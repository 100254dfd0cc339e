"""A limit on the content of foreign files in memory, for the whole process, regardless of the sizes that files claim.

Bytes count until the last reference to them is gone. If the limit is exceeded, FormatError is raised: the new content
is lost, and content that is already in memory stays.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy as np

from pyprof.errors import FormatError

MAX_HELD = 1 << 30
SMALL = 1 << 16
"""Size in bytes up to which content of foreign files is not counted for the memory limit."""
_lock = threading.RLock()  # reentrant, because a finalizer may run at any point
_held = 0


def hold_bytes(name: str, size: int, make: Callable[[], bytes | memoryview]) -> memoryview:
    """Return the bytes of a foreign file that make() returns, as counted memory.

    Args:
        name: Name for messages.
        size: Maximum size of the bytes.
        make: Returns the bytes.

    Raises:
        FormatError: The limit is exceeded.
    """
    if size <= SMALL:
        return memoryview(make())
    _claim(name, size)
    try:
        # A memoryview keeps its array alive, and unlike bytes, an array can have a finalizer.
        content = np.frombuffer(make(), np.uint8)
    except BaseException:
        _release(size)
        raise
    _release(size - len(content))
    weakref.finalize(content, _release, len(content)).atexit = False
    return content.data


class ContentReservation:
    """A counter for content of foreign files that grows piece by piece. The bytes count until this object is
    deleted.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sizes: list[int] = []
        weakref.finalize(self, _release_all, self._sizes).atexit = False

    def count_bytes(self, size: int) -> None:
        """Count further bytes of foreign files that are kept in memory.

        Raises:
            FormatError: The limit is exceeded.
        """
        _claim(self._name, size)
        self._sizes.append(size)


def count_held_bytes() -> int:
    """Return the number of bytes of foreign files that currently count for the memory limit."""
    return _held


def _claim(name: str, size: int) -> None:
    global _held
    with _lock:
        if _held + size > MAX_HELD:
            raise FormatError(name, 0, f"{size} bytes, while {_held >> 20} MB of files are in memory: not read")
        _held += size


def _release_all(sizes: list[int]) -> None:
    _release(sum(sizes))


def _release(size: int) -> None:
    global _held
    with _lock:
        _held -= size
