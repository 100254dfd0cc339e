"""Merges the windows of one recording, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from pyprof.model.merge import JoinedTables
from pyprof.model.profile import Frame, ModuleInfo, Profile, ThreadInfo
from pyprof.model.sample_filter import selected
from pyprof.model.summary_sum import summed
from pyprof.records import dataclass, replace

MAX_SAMPLES = 1_000_000
MAX_NODES = 1_000_000
"""Maximum number of nodes of the merged stack tree, which only grows. Beyond it all windows except the newest are
forgotten.
"""


@dataclass(frozen=True, slots=True)
class MergedWindows:
    """A snapshot of the merged windows. Windows that are merged later do not change it.

    Attributes:
        windows: The windows, the newest last. Their stacks and threads are numbered as in these tables, their own
            tables are empty.
        frames: Frames of all windows.
        modules: Modules of all windows.
        threads: Threads of all windows.
        parent: Parents of the nodes of the tree.
        frame: Frames of the nodes of the tree.
    """

    windows: tuple[Profile, ...]
    frames: Sequence[Frame]
    modules: Sequence[ModuleInfo]
    threads: Sequence[ThreadInfo]
    parent: Sequence[int]
    frame: Sequence[int]

    def profile(self, span_s: float = 0) -> Profile | None:
        """Return the profile of the last span_s seconds, or of all windows if it is 0.

        It contains at least one window.

        Returns:
            The profile, or None if there is no window.
        """
        chosen: list[Profile] = []
        left = span_s * 1e9
        for window in reversed(self.windows):
            if span_s and chosen and window.duration_ns > 1.5 * left:
                break
            chosen.insert(0, window)
            left -= window.duration_ns
        return self._joined(chosen) if chosen else None

    def _joined(self, windows: Sequence[Profile]) -> Profile:
        newest, nodes = windows[-1], len(self.parent)
        states = [window.state for window in windows if window.state is not None]
        cpus = [window.cpu for window in windows if window.cpu is not None]
        whole = replace(
            newest,
            start_ns=windows[0].start_ns,
            duration_ns=sum(window.duration_ns for window in windows),
            frames=tuple(self.frames),
            parent=np.array(self.parent[:nodes], np.int32),
            frame=np.array(self.frame[:nodes], np.int32),
            modules=tuple(self.modules),
            threads=tuple(self.threads),
            time_ns=np.concatenate([window.time_ns for window in windows]),
            stack=np.concatenate([window.stack for window in windows]),
            thread=np.concatenate([window.thread for window in windows]),
            values=np.concatenate([window.values for window in windows]),
            summary=summed([window.summary for window in windows]),
            state=np.concatenate(states) if len(states) == len(windows) else None,
            cpu=np.concatenate(cpus) if len(cpus) == len(windows) else None,
        )
        return selected(whole, np.ones(len(whole.stack), np.bool_))


class WindowMerger:
    """A merger of a recording's windows with the same value types. It is bounded: the oldest windows are dropped."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._windows: deque[Profile] = deque()
        self._samples = 0
        self._tables = JoinedTables()

    def add_window(self, profile: Profile) -> MergedWindows:
        """Add a window of the recording, and return a snapshot of all windows that were added."""
        if len(self._tables.tree.parent) > MAX_NODES:
            self._forget()
        tables = self._tables
        stack, thread = tables.add_profile(profile)
        window = replace(
            profile,
            frames=(),
            modules=(),
            threads=(),
            parent=profile.parent[:0],
            frame=profile.frame[:0],
            stack=stack,
            thread=thread,
        )
        self._windows.append(window)
        self._samples += len(window.stack)
        while self._samples > MAX_SAMPLES and len(self._windows) > 1:
            self._samples -= len(self._windows.popleft().stack)
        return MergedWindows(
            tuple(self._windows),
            tuple(tables.frames),
            tables.modules(),
            tuple(tables.threads),
            tables.tree.parent[:],
            tables.tree.frame[:],
        )
