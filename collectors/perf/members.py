"""Which processes belong to a recording: those that were named, those that match later, and their children."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from pyprof.collectors.linux.children import descendants
from pyprof.collectors.perf.news import ProcessNews
from pyprof.collectors.perf.processes import TrackedProcesses
from pyprof.collectors.perf.records import Scan
from pyprof.collectors.perf.ring import Rings
from pyprof.collectors.targets.selection import Selection
from pyprof.diagnostics import Diagnostics
from pyprof.options import CollectOptions


class Members:
    """tracked: what the kernel's records say of them. everything: all processes are. joined: called with processes that
    have come to fit. had_news: news() the last time.
    """

    def __init__(
        self, pid: int, selection: Selection | None, options: CollectOptions, tracked: TrackedProcesses
    ) -> None:
        """selection: further processes, those to come included."""
        self.tracked = tracked
        self.everything = selection is not None and selection.everything
        self.joined: Callable[[list[int]], None] = lambda pids: None
        self.had_news = False
        self._pid = pid
        self._selection = selection
        self._children = options.subprocesses
        self._news: ProcessNews | None = None
        self._fresh: set[int] = set()
        self._asked = False

    @property
    def named(self) -> dict[int, None]:
        """The processes that were asked for, one after the other."""
        return dict.fromkeys([self._pid, *(self._selection.pids if self._selection else ())])

    @property
    def ours(self) -> set[int]:
        """Processes of the profiler: they are never part of the recording."""
        return {os.getpid(), *(self._selection.ours if self._selection else ())}

    def children(self) -> list[int]:
        """Those of the named ones that are there now, if they are followed."""
        return list(descendants(self.named)) if self._children else []

    def watch(self, rings: Rings) -> None:
        """Where the records of births and execs are."""
        self._news = ProcessNews(rings, self._is_sampled, self._children or self.everything)

    def meet(self, pids: list[int]) -> None:
        """Processes that are sampled from now on. Raises ProcessLookupError and PermissionError of the first one."""
        for pid in pids:
            try:
                self.tracked.meet(pid)
            except (ProcessLookupError, PermissionError):
                if pid == self._pid and not self.everything:
                    raise
        self._fresh.update(pids)

    def found(
        self,
        known: set[int],
        attach: Callable[[int], None],
        diagnostics: Diagnostics,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[int]:
        """Take in processes that have come to fit, until is_over(). known: not looked at any more; attach: puts events
        on one. Result: those that may not be looked at.
        """
        if self._selection is None or self.everything or is_over():
            return
        for pid in self._selection.find(self.tracked.histories.keys() | known):
            if is_over():
                return
            try:
                attach(pid)
                self.tracked.add(pid)
                self._fresh.add(pid)
                self.joined([pid])
            except (ProcessLookupError, PermissionError):
                diagnostics.count("process may not be looked at")
                yield pid

    @property
    def alive(self) -> list[int]:
        """The processes that have not ended."""
        return list(self.tracked.alive)

    def heard(self, found: Scan) -> None:
        """Take forks, execs and mappings from these, whose room is released after that, if anybody asks for news()."""
        if self._news is not None and self._asked:
            self._fresh |= self._news.heard(found)

    def news(self) -> set[int]:
        """Processes that have come, or run other code than before, since this was asked last; some may have ended."""
        self._asked = True
        if self._news is not None:
            self._fresh |= self._news.look()
        fresh, self._fresh = self._fresh, set()
        self.had_news = bool(fresh)
        return fresh

    def follows(self, pid: int) -> bool:
        """Is it a process of the recording, perhaps one whose birth was not taken in yet?"""
        return self._news.knows(pid) if self._news is not None else self._is_sampled(pid)

    @property
    def _lasting(self) -> bool:
        return self._selection is not None and self._selection.lasting

    def _is_sampled(self, pid: int) -> bool:
        ours = self._children or self._lasting or pid in self._only
        return self.everything or (ours and pid in self.tracked.alive)

    @property
    def _only(self) -> tuple[int, ...]:
        return self._selection.pids if self._selection is not None else (self._pid,)

    @property
    def goes_on(self) -> bool:
        """Is there still anything to sample?"""
        if self._lasting:
            return True
        if self._children:
            return bool(self.tracked.alive)
        return any(pid in self.tracked.alive for pid in self._only)

    @property
    def refused(self) -> tuple[str, ...]:
        """What keeps some of them from being recorded, a sentence each."""
        return self._selection.refused if self._selection else ()
