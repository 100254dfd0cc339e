"""The limits for recording single waits: as many as can be unwound, shorter ones if there are few."""

from __future__ import annotations

import time
from collections.abc import Callable

_FEW_HZ, _MANY_HZ = 300.0, 2000.0
"""Rates of wait records per second that count as few and as many. Unwinding one takes some 20 us."""
_SHARE, _FIRST_SHARE, _MAX_SHARE = 32, 256, 1 << 14
_MUCH_USED = 0.1
"""Used share of the ring buffer, before it is read, above which fewer stacks are copied."""
_LOWEST_NS = 20_000
_HIGHER = 64
"""Factor for the minimum duration of recorded waits if even waits of most_ns are too many."""
_AFTER_NS = 100_000_000


class WaitRates:
    """The limits for the rate at which the BPF program records single waits.

    Attributes:
        least_ns: Shorter waits get no separate record, unless their stack was copied.
        share: At most 1/share of a thread's time is spent on copies at shorter waits.
        most_ns: Maximum of least_ns, unless such waits are too many.
    """

    def __init__(self, most_ns: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Start with the highest minimum length of waits that get a record (least_ns)."""
        self.least_ns, self.share = most_ns, _FIRST_SHARE
        self.most_ns = most_ns
        self._copies = self._ends = 0
        self._clock = clock
        self._since_ns = clock()

    def adjust_limits(self, copies: int, ends: int, used: float) -> bool:
        """Adjust the limits for wait records, and return True if one has changed.

        Args:
            copies: Number of new stacks.
            ends: Number of new ends of waits.
            used: Share of the ring that they used.
        """
        if used > _MUCH_USED:
            self.share = min(4 * self.share, _MAX_SHARE)
            return True
        self._copies += copies
        self._ends += ends
        passed_ns = self._clock() - self._since_ns
        if passed_ns < _AFTER_NS:
            return False
        before = self.least_ns, self.share
        copies_hz, ends_hz = 1e9 * self._copies / passed_ns, 1e9 * self._ends / passed_ns
        if copies_hz > _MANY_HZ:
            self.share = min(2 * self.share, _MAX_SHARE)
        elif copies_hz < _FEW_HZ:
            self.share = max(self.share // 2, _SHARE)
        if ends_hz > _MANY_HZ:
            most_ns = self.most_ns if ends_hz < 2 * _MANY_HZ else _HIGHER * self.most_ns
            self.least_ns = min(2 * self.least_ns, max(most_ns, self.least_ns))
        elif ends_hz < _FEW_HZ:
            self.least_ns = max(self.least_ns // 2, min(_LOWEST_NS, self.most_ns))
        self._copies = self._ends = 0
        self._since_ns += passed_ns
        return before != (self.least_ns, self.share)
