"""Merges the windows of a recording into snapshots, and saves one as a file of any format."""

from __future__ import annotations

import os
from collections import deque
from functools import partial

import numpy as np

from pyprof.cli.argument_types import chosen_format
from pyprof.cli.live.cost_totals import NOTHING, Tally, tally, together
from pyprof.cli.number_format import duration
from pyprof.cli.output_files import Names, check_writable, write
from pyprof.errors import PyprofError, UsageError
from pyprof.exporters import output_file, registry
from pyprof.exporters.base import ExportOptions
from pyprof.model.idle_waits import hidden_waits, without_idle
from pyprof.model.incremental_merge import MergedWindows, WindowMerger
from pyprof.model.profile import Profile, ValueType
from pyprof.model.sample_filter import selected
from pyprof.records import dataclass, replace
from pyprof.session.recording import Recorded

KEPT_NS = 60_000_000_000
"""Maximum span of a view of `pyprof top` other than "all", in nanoseconds."""


DEFAULT_NAME = f"pyprof-%n-%p-%t{registry.DEFAULT.suffixes[0]}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable snapshot of all that `pyprof top` has recorded.

    Attributes:
        recent: Windows of the last KEPT_NS, the newest last.
        whole: All windows together.
        ended: Why the recording has ended, "" while it runs.
        seen: Stacks of the stored windows, those of idle threads included; None before the first window.
        warning: Most important problem of the newest window.
        shows_idle: The tables have the waits of idle threads.
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
        """Return a cost table of the last span_s seconds (0 for all), of at least one window."""
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
    """The newest snapshot of one recording, which each window of the recording updates."""

    def __init__(self, title: str, mode: str, shows_idle: bool = False) -> None:
        self.snapshot = Snapshot(title, mode, shows_idle=shows_idle)
        self._recent: deque[Tally] = deque()
        self._merging = WindowMerger()

    def add_window(self, profile: Profile) -> Snapshot:
        """Add the next window to the snapshot."""
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
        """Note why the recording has ended, and return the last snapshot."""
        self.snapshot = replace(self.snapshot, ended=why)
        return self.snapshot


def saved(snapshot: Snapshot, path: str, subject: Recorded) -> str:
    """Save all samples that `pyprof top` keeps, in the format of the file's suffix, and return a message.

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
