"""Keys of threads and processes: number and start time, so that a reused number is another key.

The kernel gives a tid again once its thread has ended. Two threads of one number are two keys.
"""

from __future__ import annotations

from typing import NamedTuple


class ProcessKey(NamedTuple):
    """started: as ThreadKey has it, of the process's first thread."""

    pid: int
    started: int


class ThreadKey(NamedTuple):
    """started: nanoseconds of CLOCK_MONOTONIC at which the thread began, as exactly as its source has it, or was seen
    first; 0: not known (a core file, a dump, a remote stub).
    """

    pid: int
    tid: int
    started: int
