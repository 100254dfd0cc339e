"""Keys of threads and processes. They contain the start time, so that a reused number is another key.

The kernel reuses a tid after its thread has ended. Two threads with the same number have different keys.
"""

from __future__ import annotations

from typing import NamedTuple


class ProcessKey(NamedTuple):
    """Key of a process. `started` is the start time of the process's first thread (see ThreadKey)."""

    pid: int
    started: int


class ThreadKey(NamedTuple):
    """The key of a thread: tid and start time.

    `started` is the start time in nanoseconds of CLOCK_MONOTONIC, as exact as its source, or the time at which the
    thread was first seen. It is 0 if unknown (a core file, a dump, a GDB stub).
    """

    pid: int
    tid: int
    started: int
