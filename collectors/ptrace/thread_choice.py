"""The selection of a process's threads for the recording, by name or otherwise."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from pyprof.collectors.ptrace.threads import Thread
from pyprof.model.profile import ThreadInfo

_NAMES_NS = 1_000_000_000

Wants = Callable[[int, int], bool]
"""(pid, tid) -> True if the thread should be sampled"""
Describe = Callable[[int], ThreadInfo | None]
"""tid -> its description, or None if it has ended"""


class ThreadChoice:
    """The selection of threads.

    Args:
        pattern: Pattern to find in names of threads. They are read once a second, because most threads get their name
            after their start.
        wants: See Wants; None for all threads.
    """

    def __init__(self, pattern: re.Pattern[str] | None, wants: Wants | None) -> None:
        self._pattern = pattern
        self._wants = wants
        self._named: list[Thread] | None = None
        self._read_at = 0

    def forget_choices(self) -> None:
        """Forget the selection, because threads have started or ended."""
        self._named = None

    def select_threads(self, threads: Mapping[int, Thread], describe: Describe) -> list[Thread]:
        """Return the selected ones of all threads of the process."""
        found = self._by_name(threads, describe)
        wants = self._wants
        return found if wants is None else [each for each in found if wants(each.pid, each.tid)]

    def _by_name(self, threads: Mapping[int, Thread], describe: Describe) -> list[Thread]:
        if self._pattern is None:
            return list(threads.values())
        now = time.monotonic_ns()
        if self._named is None or now >= self._read_at:
            self._read_at = now + _NAMES_NS
            pattern, names = self._pattern, {tid: describe(tid) for tid in threads}
            fits = {tid for tid, info in names.items() if info is not None and pattern.search(info.name)}
            self._named = [thread for tid, thread in threads.items() if tid in fits]
        return self._named
