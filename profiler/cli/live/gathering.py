"""Windows of a recording, one after the other, as snapshots."""

from __future__ import annotations

from collections import deque

from pyprof.cli.live.tally import NOTHING, Tally, tally, together
from pyprof.model.merged import MergedWindows, Merging
from pyprof.model.profile import Profile, ValueType
from pyprof.records import dataclass, replace

KEPT_NS = 60_000_000_000
"""How far back the spans of a view go, other than all."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that was seen until now; nothing changes it. recent: windows of the last KEPT_NS, the newest last. whole: all
    windows together. ended: why nothing comes any more, "" while something does. seen: the windows' stacks, as far back
    as they are kept; None before the first. warning: what must be known of the newest window.
    """

    title: str
    mode: str
    value_type: ValueType = ValueType("", "nanoseconds")
    recent: tuple[Tally, ...] = ()
    whole: Tally = NOTHING
    ended: str = ""
    seen: MergedWindows | None = None
    warning: str = ""

    def table(self, name: str, span_s: float) -> Tally:
        """What was seen in the last span_s seconds, 0 for all; only the table of that name. At least one window."""
        if not span_s:
            return self.whole
        chosen: list[Tally] = []
        left = span_s * 1e9
        for each in reversed(self.recent):
            if chosen and each.duration_ns > 1.5 * left:  # a window may last a little longer than it should
                break
            chosen.append(each)
            left -= each.duration_ns
        return together(chosen, (name,))


class Gathering:
    """Of one recording. snapshot: the newest."""

    def __init__(self, title: str, mode: str) -> None:
        self.snapshot = Snapshot(title, mode)
        self._recent: deque[Tally] = deque()
        self._merging = Merging()

    def add(self, profile: Profile) -> Snapshot:
        """The next window."""
        found = tally(profile)
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
        )
        return self.snapshot

    def end(self, why: str) -> Snapshot:
        """Nothing comes any more."""
        self.snapshot = replace(self.snapshot, ended=why)
        return self.snapshot
