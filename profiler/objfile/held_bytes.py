"""Content of foreign files that is in memory: bounded for the whole process, whatever files claim to hold.

In: how many bytes something will take at most, and what makes them. Out: the bytes; they count until nobody refers to
them. Raises FormatError where there is no room: that content is lost, what is in memory stays.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy as np

from pyprof.errors import FormatError

MAX_HELD = 1 << 30
SMALL = 1 << 16
"""Bytes of what is not counted."""
_lock = threading.RLock()  # a finalizer may run inside of any call
_held = 0


def hold(name: str, size: int, make: Callable[[], bytes | memoryview]) -> memoryview:
    """The bytes that make() gives. name: for messages. size: most bytes that they take."""
    if size <= SMALL:
        return memoryview(make())
    _claim(name, size)
    try:
        # a view of an array keeps the array, and an array, unlike bytes, says when it goes
        content = np.frombuffer(make(), np.uint8)
    except BaseException:
        _release(size)
        raise
    _release(size - len(content))
    weakref.finalize(content, _release, len(content)).atexit = False
    return content.data


class HeldBytes:
    """What grows piece by piece; it counts until this object goes. name: for messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sizes: list[int] = []
        weakref.finalize(self, _release_all, self._sizes).atexit = False

    def add(self, size: int) -> None:
        """Raises FormatError where there is no room."""
        _claim(self._name, size)
        self._sizes.append(size)


def held() -> int:
    """Bytes that count now."""
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
