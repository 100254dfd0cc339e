"""The amount of a thread's stack to copy, learned for each thread from what the walks needed.

The home stack is the stack on which the thread usually runs. Its first copy extends to the end of the mapping, later
copies to the highest address that a walk has used. If a thread is on another stack (of a signal handler, of a
coroutine), that stack is copied, and the part of its home stack that the other one points into.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collectors.targets.maps_text import StackMapping
from pyprof.records import dataclass

RED_ZONE = 128
"""Number of bytes below sp that a leaf function may use without moving sp (System V ABI, x86-64)."""

RegionAt = Callable[[int], StackMapping | None]
"""Function that maps an address to the writable mapping around it, or to None if that is unknown."""

MIN_SPAN_BYTES = 4096
SLACK = 256
_AWAY = 32 << 10
_GROWTH = 16 << 10


@dataclass(slots=True)
class StackShape:
    """The known extent of a thread's stack.

    Attributes:
        most: Maximum copy in bytes (--stack-size).
        home: The home stack, on which the thread usually runs, or None if it is not known yet.
        top: Highest address in it that a walk needed; 0 if not known yet.
        away: Number of bytes to copy if the thread is on another stack.
    """

    most: int
    home: StackMapping | None = None
    top: int = 0
    away: int = _AWAY

    def is_home(self, sp: int, region_at: RegionAt) -> bool:
        """Return True if sp is in the stack on which the thread usually runs, its home stack."""
        home = self.home
        if home is not None and home.start <= sp < (self.top or home.end):
            return True
        region = region_at(sp)
        if home is None:
            self.home = region
            return region is not None
        if region is None:  # an unlisted part of a main stack, which grows downwards
            return home.end - max(self.most, 8 << 20) <= sp < home.start
        if region.start < home.end and home.start < region.end:
            self.home = region
            return not self.top or sp < self.top
        return False

    @property
    def occupied(self) -> StackMapping | None:
        """The part of the thread's usual stack that can contain frames."""
        home = self.home
        return StackMapping(home.start, self.top or home.end) if home is not None else None

    def span(self, sp: int, region_at: RegionAt) -> tuple[int, int]:
        """Return (avma, size) of the stack copy for a thread with this sp."""
        base, length = self.length(sp, region_at)
        return base, min(length, self.most)

    def length(self, sp: int, region_at: RegionAt) -> tuple[int, int]:
        """Return (avma, size) of the stack that a thread with this sp runs on, as far as it may be needed."""
        base = max(sp - RED_ZONE, 0) & ~7
        if self.is_home(sp, region_at):
            assert self.home is not None
            end = self.home.end
            if sp < self.top:
                end = min(end, max(self.top + SLACK, base + MIN_SPAN_BYTES))
        else:
            # the stack of a new thread may be newer than the last reading of the maps: then the read ends where the
            # stack does
            end = base + min(self.away if self.home else self.most, self.most)
            region = region_at(sp)
            if region is not None:
                end = min(end, region.end)
        return base, end - base

    def home_span(self, lowest: int) -> tuple[int, int]:
        """Return (avma, size) of the stack on which the thread usually runs, from its lowest needed address on."""
        assert self.home is not None
        base = max(lowest - RED_ZONE, 0) & ~7
        end = self.home.end
        if lowest < self.top:
            end = min(end, self.top + SLACK)
        return base, min(end - base, self.most)

    def learn(self, base: int, top: int, missing: int, region: StackMapping | None) -> bool:
        """Learn which part of the stack one walk needed.

        Args:
            base: Address of the copy.
            top: See Feedback.
            missing: See Feedback.
            region: Mapping around `missing`.

        Returns:
            True if the next copy of the thread's stack will differ.
        """
        home = self.home
        before = home, self.top, self.away
        if missing:
            if home is not None and base in home and missing in home:
                reach = missing + max(_GROWTH, missing - base)
                self.top = min(max(self.top, reach), home.end)
            elif home is not None and missing in home:
                self.top = min(max(self.top, missing + _GROWTH), home.end)
            elif region is not None and not (region.start <= base < region.end):
                self.home, self.top = region, 0
            else:
                self.away = min(self.most, max(2 * self.away, missing - base + MIN_SPAN_BYTES))
        elif home is not None and home.start <= top <= home.end and top > self.top:
            self.top = top
        return (self.home, self.top, self.away) != before
