"""Snapshots of a running recording: its windows are merged one after the other, and a snapshot can be saved."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np

from pyprof.cli.arguments import chosen_format
from pyprof.cli.number_and_name_format import duration
from pyprof.cli.output_files import Names, check_writable, write
from pyprof.cli.top_window_costs import NOTHING, Tally, tally, together
from pyprof.errors import PyprofError, UsageError
from pyprof.exporters import output_file, registry
from pyprof.exporters.base import ExportOptions
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.idle_waits import hidden_waits, without_idle
from pyprof.model.analysis.merge import JoinedTables
from pyprof.model.analysis.sample_filter import selected
from pyprof.model.profile import Frame, ModuleInfo, Profile, ThreadInfo, ValueType
from pyprof.model.summary import summed
from pyprof.session.recording import Recorded

MAX_SAMPLES = 1_000_000
MAX_NODES = 1_000_000
"""Maximum number of nodes of the merged stack tree of `pyprof top`, which only grows. Beyond it, all windows except the
newest are dropped.
"""


@dataclass(frozen=True, slots=True)
class MergedWindows:
    """An immutable snapshot of merged windows: they share one tree of stacks. Windows that are merged later do not
    change it.

    Attributes:
        windows: The windows, the newest last. Their own tables are empty: the numbers of their stacks and threads refer
            to the tables of this object.
        frames: Frames of all windows.
        modules: Modules of all windows.
        threads: Threads of all windows.
        parent: For each node of the stack tree, the index of its parent.
        frame: For each node of the stack tree, the index of its frame.
    """

    windows: tuple[Profile, ...]
    frames: Sequence[Frame]
    modules: Sequence[ModuleInfo]
    threads: Sequence[ThreadInfo]
    parent: Sequence[int]
    frame: Sequence[int]

    def profile(self, span_s: float = 0) -> Profile | None:
        """Return the profile of the last span_s seconds, or of all windows if span_s is 0.

        The profile contains at least one whole window.

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
    """A merger of a recording's windows, which have the same value types. Its size is bounded: the oldest windows are
    dropped.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._windows: deque[Profile] = deque()
        self._samples = 0
        self._tables = JoinedTables()

    def add_window(self, profile: Profile) -> MergedWindows:
        """Add a window of the recording, and return a snapshot of all windows that are merged."""
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


KEPT_NS = 60_000_000_000
"""Length in nanoseconds of the longest time span that `pyprof top` can show, apart from the whole recording."""


DEFAULT_NAME = f"pyprof-%n-%p-%t{registry.DEFAULT.suffixes[0]}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable snapshot of all that `pyprof top` has recorded.

    Attributes:
        recent: Costs of each window of the last KEPT_NS nanoseconds, the newest last.
        whole: Costs of all windows together.
        ended: Why the recording has ended, "" while it runs.
        seen: Stacks of the stored windows, including those of idle threads; None before the first window.
        warning: Most important problem of the newest window.
        shows_idle: True if the tables include the waits of idle threads.
        idle_threads: Number of idle threads that the tables leave out in the newest window.
    """

    title: str
    mode: str
    value_type: ValueType = ValueType("", "nanoseconds")
    recent: tuple[Tally, ...] = ()
    whole: Tally = NOTHING
    ended: str = ""
    seen: MergedWindows | None = None
    warning: str = ""
    shows_idle: bool = False
    idle_threads: int = 0

    def table(self, name: str, span_s: float) -> Tally:
        """Return the costs in the last span_s seconds, of at least one window. If span_s is 0, return those of the
        whole recording.
        """
        if not span_s:
            return self.whole
        chosen: list[Tally] = []
        left = span_s * 1e9
        for each in reversed(self.recent):
            if chosen and each.duration_ns > 1.5 * left:  # a window may last a little longer than requested
                break
            chosen.append(each)
            left -= each.duration_ns
        return together(chosen, (name,))


class SnapshotBuilder:
    """The builder of snapshots of one recording of `pyprof top`. Each window of the recording makes a new snapshot."""

    def __init__(self, title: str, mode: str, shows_idle: bool = False) -> None:
        self.snapshot = Snapshot(title, mode, shows_idle=shows_idle)
        self._recent: deque[Tally] = deque()
        self._merging = WindowMerger()

    def add_window(self, profile: Profile) -> Snapshot:
        """Add the next window of the recording, and make a new snapshot."""
        hidden = np.zeros(len(profile.stack), np.bool_) if self.snapshot.shows_idle else hidden_waits(profile)
        found = tally(selected(profile, ~hidden) if hidden.any() else profile)
        self._recent.append(found)
        while sum(each.duration_ns for each in self._recent) - self._recent[0].duration_ns >= KEPT_NS:
            self._recent.popleft()
        self.snapshot = replace(
            self.snapshot,
            value_type=profile.value_types[-1],
            recent=tuple(self._recent),
            whole=together((self.snapshot.whole, found)),
            seen=self._merging.add_window(profile),
            warning=next((problem.text for problem in profile.summary.warnings), ""),
            idle_threads=len(np.unique(profile.thread[hidden])),
        )
        return self.snapshot

    def end(self, why: str) -> Snapshot:
        """Record why the recording has ended, and return the last snapshot."""
        self.snapshot = replace(self.snapshot, ended=why)
        return self.snapshot


def saved(snapshot: Snapshot, path: str, subject: Recorded) -> str:
    """Save all samples that `pyprof top` keeps in a file, in the format of its suffix. Return a message for the user.

    Args:
        path: Path of the file, "" for the default name.

    Raises:
        UsageError: The suffix is not known.
        OutputError: The file cannot be written.
    """
    profile = snapshot.seen.profile() if snapshot.seen is not None else None
    if profile is None:
        raise PyprofError("there are no samples yet")
    if path == "-":
        raise UsageError("standard output is the screen", "a file name")
    place = Names(subject.pid, subject.name, profile.start_ns / 1e9, 0).expand(os.path.expanduser(path or DEFAULT_NAME))
    exporter = chosen_format(None, place)
    check_writable(place)
    options = ExportOptions(processes=profile.has_processes)
    shown = profile if snapshot.shows_idle or exporter.name == registry.RECORDING else without_idle(profile)
    place = write(place, partial(exporter.write, shown, options=options))
    if exporter.name == registry.RECORDING:
        output_file.drop_logs(place)
    return f"saved {duration(profile.duration_ns)} in {place}"
