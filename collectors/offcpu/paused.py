"""Threads without records for a while: their running time, and whether they have ended."""

from __future__ import annotations

from collections.abc import Iterable

from pyprof.collectors.linux import procfs


class PausedThreads:
    def __init__(self) -> None:
        self._run_ns: dict[int, int] = {}
        self._started: dict[int, int] = {}

    def watch_threads(self, tids: Iterable[int], running: bool) -> None:
        """Start to watch threads.

        Args:
            tids: The threads.
            running: True if their running time is known from samples.
        """
        for tid in tids:
            if not running:
                self._run_ns[tid] = _run_ns(tid)
            if (start := procfs.read_start_ticks(tid)) is not None:
                self._started[tid] = start

    def keep_only(self, tids: set[int]) -> None:
        """Forget all other threads."""
        for kept in (self._run_ns, self._started):
            for tid in kept.keys() - tids:
                del kept[tid]

    def find_ended(self, tids: Iterable[int]) -> list[int]:
        """Return the threads that have ended, even if another thread has the tid now."""
        found = []
        for tid in tids:
            start = procfs.read_start_ticks(tid)
            if start is None or self._started.get(tid, start) != start:
                self._started.pop(tid, None)
                found.append(tid)
        return found

    def read_run_ns(self) -> dict[int, int]:
        """Return the running time of each thread since the last call, as the kernel counts it."""
        before, self._run_ns = self._run_ns, {tid: _run_ns(tid) for tid in self._run_ns}
        return {tid: max(self._run_ns[tid] - ns, 0) for tid, ns in before.items()}


def _run_ns(tid: int) -> int:
    try:
        with open(f"/proc/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
