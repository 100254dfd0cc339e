"""How much of each stack the kernel is asked to copy: all that it can at first, then what the walks needed, with room.

One size for all threads of a recording: it belongs to the event, which new threads inherit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import Feedback
from pyprof.collectors.perf.attr import MOST_STACK
from pyprof.collectors.perf.records import OVERHEAD
from pyprof.collectors.perf.ring import LEAST_RING
from pyprof.options import HOLD, CollectOptions

BATCH = 2000
"""Samples of one thread that make a batch."""
SLACK_S = 0.1
TOO_LONG = "stacks that are longer than the kernel copies, or go on in another stack"

_MOST_RING = 16 << 20
_MOST_RINGS = 32 << 20
_LEAST = 2048
_FAR = 4
"""What lies so many times the longest copy away is in another stack."""
_SURE_AFTER = 256
_LIKELY_AFTER, _LIKELY_ROOM = 8, 4


class StackSize:
    """bytes: what is copied now. most: the limit."""

    def __init__(self, most: int, first: int) -> None:
        """first: of the samples after the first ones, which have all that can be had."""
        self.most = most
        self.bytes = most
        self._first = min(first, most)
        self._seen = 0
        self._sure_after = _SURE_AFTER
        self._need = 0
        self._short = False

    def learn(self, feedback: Feedback) -> None:
        """What the walks of a batch read: up to top, or for a copy that was too short up to missing."""
        base = feedback.batch.stack.base
        reach = np.maximum(feedback.top, feedback.missing)
        need = reach[reach > base] - base[reach > base]
        self._seen += len(base)
        if len(need):
            near = need[need < _FAR * self.most]  # farther: another stack
            self._need = max(self._need, int(near.max()) if len(near) else 0)
        self._short = self._need > self.bytes

    def settle(self) -> None:
        """After the first samples."""
        self.bytes = max(self._first, self.wanted)

    def tighten(self) -> None:
        """As small as may be, from few samples on: they are taken often."""
        self._sure_after = _LIKELY_AFTER
        self.bytes = self.wanted if self._seen >= self._sure_after else max(self._first, self.wanted)

    def forget(self) -> None:
        """Stacks from now on are other threads'."""
        self._seen = self._need = 0
        self._short = False

    @property
    def wanted(self) -> int:
        """What the walks so far ask for."""
        return min(max(_LEAST, (self._need + self._need // 2 + 1023) & ~1023), self.most)

    def change(self) -> int:
        """The size to change to, 0 to keep what is there. Grows at once, shrinks once that is safe: large copies, of
        whatever else runs there, too, fill the rings of a busy machine before we have had a processor.
        """
        wanted = self.wanted
        if self._short and self.bytes < wanted:
            return min(max(wanted, 2 * self.bytes), self.most)
        if self._seen >= self._sure_after and 2 * wanted <= self.bytes:
            return wanted
        if self._seen >= _LIKELY_AFTER and 2 * _LIKELY_ROOM * wanted <= self.bytes:
            return _LIKELY_ROOM * wanted
        return 0

    def changed(self, size: int) -> None:
        self.bytes = size
        self._short = False


def ring_size(options: CollectOptions, cpus: int) -> int:
    """Room for all samples of two batches, as far as that is not too much memory."""
    wanted = (min(options.rate_hz * HOLD * options.flush_s, BATCH) + 2 * SLACK_S * options.rate_hz) * (OVERHEAD + 8192)
    most = max(min(_MOST_RING, _MOST_RINGS // cpus), LEAST_RING)
    size = 8 << 20
    while size < wanted:
        size *= 2
    while size > most:
        size //= 2
    return size


def elsewhere(feedback: Feedback, most: int = MOST_STACK) -> npt.NDArray[np.bool_]:
    """Whose walks needed what lies so far away, or below, that it is in another stack? most: as in beyond_copy()."""
    missing, base = feedback.missing, feedback.batch.stack.base
    found: npt.NDArray[np.bool_] = (missing > 0) & ((missing < base) | (missing - base >= _FAR * most))
    return found


def beyond_copy(feedback: Feedback, most: int = MOST_STACK) -> npt.NDArray[np.bool_]:
    """Whose walks needed what no copy of the kernel can hold? What is nearer comes with larger copies. most: bytes of
    one.
    """
    missing, base = feedback.missing, feedback.batch.stack.base
    found: npt.NDArray[np.bool_] = (missing > 0) & ((missing < base) | (missing - base > most * 7 // 8))
    return found
