"""Merges the windows of a recording into snapshots."""

from __future__ import annotations

from collections import deque

import numpy as np

from pyprof.cli.live.cost_totals import NOTHING, Tally, tally, together
from pyprof.model.idle_waits import hidden_waits
from pyprof.model.incremental_merge import MergedWindows, Merging
from pyprof.model.profile import Profile, ValueType
from pyprof.model.sample_filter import selected
from pyprof.records import dataclass, replace

KEPT_NS = 60_000_000_000
"""Maximum span of a view of `pyprof top` other than "all", in nanoseconds."""


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


class Gathering:
    """The newest snapshot of one recording, which each window of the recording updates."""

    def __init__(self, title: str, mode: str, shows_idle: bool = False) -> None:
        self.snapshot = Snapshot(title, mode, shows_idle=shows_idle)
        self._recent: deque[Tally] = deque()
        self._merging = Merging()

    def add(self, profile: Profile) -> Snapshot:
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
            seen=self._merging.add(profile),
            warning=next((problem.text for problem in profile.summary.warnings), ""),
            idle_threads=len(np.unique(profile.thread[hidden])),
        )
        return self.snapshot

    def end(self, why: str) -> Snapshot:
        """Note why the recording has ended, and return the last snapshot."""
        self.snapshot = replace(self.snapshot, ended=why)
        return self.snapshot
