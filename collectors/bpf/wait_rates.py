"""Which waits are recorded one by one: as many as can be unwound, shorter ones where it is quiet."""

from __future__ import annotations

import time
from collections.abc import Callable

_FEW_HZ, _MANY_HZ = 300.0, 2000.0
"""Records a second. Unwinding one takes some 20 us."""
_SHARE, _FIRST_SHARE, _MOST_SHARE = 32, 256, 1 << 14
_MUCH_USED = 0.1
"""Of the ring, before it is read."""
_LOWEST_NS = 20_000
_HIGHER = 64
"""Where waits of most_ns are too many, so much longer ones are the least."""
_AFTER_NS = 100_000_000


class WaitRates:
    """least_ns: shorter waits have no record of their own, unless their stack was copied. share: of a thread's time at
    most 1/share goes into copies of shorter ones. most_ns: what least_ns is at most, unless such waits are too many.
    """

    def __init__(self, most_ns: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """most_ns: what least_ns may be at most."""
        self.least_ns, self.share = most_ns, _FIRST_SHARE
        self.most_ns = most_ns
        self._copies = self._ends = 0
        self._clock = clock
        self._since_ns = clock()

    def changed(self, copies: int, ends: int, used: float) -> bool:
        """So many more came, which used that share of the ring. Is anything other than before?"""
        if used > _MUCH_USED:
            self.share = min(4 * self.share, _MOST_SHARE)
            return True
        self._copies += copies
        self._ends += ends
        passed_ns = self._clock() - self._since_ns
        if passed_ns < _AFTER_NS:
            return False
        before = self.least_ns, self.share
        copies_hz, ends_hz = 1e9 * self._copies / passed_ns, 1e9 * self._ends / passed_ns
        if copies_hz > _MANY_HZ:
            self.share = min(2 * self.share, _MOST_SHARE)
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
