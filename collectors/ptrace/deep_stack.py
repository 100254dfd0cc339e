"""Stacks that are longer than what one stop copies.

The inner part is copied at each stop. The rest is read once, after the thread runs again. Later stops read small parts
of it only. Where a frame is so large that the next one lies where the stack began (alloca), a walk needs no more than
that, and the rest is not read. Else the walk decides whether the rest is unchanged (unwind/heuristics/deep_stacks.py).
Its feedback makes the collector look at a word that the walk has to see, copy more, or read the rest again.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from functools import partial

import numpy as np

from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.model.sample import Beyond, OuterStack, Piece
from pyprof.records import dataclass, field

_LEAST = 64 << 10
_OVERLAP = 16 << 10
"""So much of the copy lies in what was read before."""
_END = 32 << 10
"""So much of the stack's outermost part is looked at each time: where a recursion was called from, as a rule."""
_PLACE = 2048
_MOST_PLACES = 32
"""So much around a word that a walk had to see is looked at each time, at the last places of so many."""
_SPOTS = 32
_SPOT = 4096
_MOST_OUTER = 256 << 20
_MOST_ALL = 512 << 20
"""Bytes, of one stack and of all."""
_SLICE = 1 << 20
_MOST_REST = 256
_SURE_AFTER = 64

_numbers = itertools.count(1)
_kept: weakref.WeakSet[OuterStack] = weakref.WeakSet()


@dataclass(slots=True, eq=False)
class DeepStack:
    """What is known of one thread's stack. reach: bytes that are copied at a stop. due: the rest is to be read anew.
    rest: so many times it is not, since that was of no use. longest: the most of it that was seen. places: ends of the
    parts that walks had to see. bridged: of the copy so many bytes were needed by a walk that went on where the stack
    began, 0 where none did.
    """

    outer: OuterStack | None = None
    reach: int = _LEAST
    due: bool = True
    rest: int = 0
    longest: int = 0
    bridged: int = 0
    places: deque[int] = field(default_factory=partial(deque[int], maxlen=_MOST_PLACES))
    _patience: int = 0
    _useful: int = 0
    _joined: int = 0
    _turn: itertools.count[int] = field(default_factory=itertools.count)

    def to_copy(self, base: int, most: int) -> int:
        """Bytes to copy of a stack from base on, if they are fewer than all; `most` where the rest must be read."""
        outer = self.outer
        if self.bridged:
            return min(most, max(2 * self.bridged, _LEAST))
        if outer is None or self.due:
            return most
        return min(most, max(self.reach, outer.avma + _OVERLAP - base))

    def spots(self, first: int, end: int) -> list[tuple[int, int]]:
        """(avma, size) of what is looked at beyond a copy: others each time, of equal distance; where a walk had to
        look; and what follows the copy, where the walk of the copy alone has to look.
        """
        last = max(first, end - _END)
        stride = max((last - first) // _SPOTS & -8, _SPOT)
        start = first + next(self._turn) * 5 * _SPOT % stride & -8
        parts = [(at, min(at + _SPOT, last)) for at in range(start, last, stride)]
        places = [(max(at - _PLACE, first), min(at, last)) for at in self.places]
        ahead = [(first, min(first + _SPOT, last)), *parts, *places, (last, end)]
        return [(low, high - low) for low, high in ahead if low < high]

    def holds(self, base: int, size: int) -> bool:
        """Does a copy reach into what was read before, or is that not needed?"""
        if self.bridged:
            return True
        return self.outer is not None and not self.due and base + size >= self.outer.avma + _OVERLAP

    def may_read(self, length: int) -> bool:
        """Is the rest to be read now? length: of all."""
        if self.rest > 0:
            self.rest -= 1
            return False
        return length <= _MOST_OUTER and sum(outer.words.nbytes for outer in _kept) + length <= _MOST_ALL

    def read(self, ptrace: PtraceCalls, pid: int, base: int, copy: memoryview, length: int, word: int) -> None:
        """All from base on. copy: its first part, as it was at the stop."""
        words = np.empty(length // word, f"u{word}")
        data = words.view(np.uint8)
        data[: len(copy)] = copy
        at = len(copy)
        while at < len(data):
            size = min(_SLICE, len(data) - at)
            got = ptrace.read_memory(pid, base + at, size, words.ctypes.data + at)
            at += max(got, 0)
            if got < size:
                break
        words = words[: at // word]
        words.flags.writeable = False
        self.outer, self.due = OuterStack(base, words, next(_numbers)), False
        _kept.add(self.outer)

    def learn(self, beyond: Beyond, whole: bool, missing: int, most: int, needed: int = 0) -> bool:
        """What the walk of a sample made of it. beyond: as the sample had it. missing: as in Feedback. needed: bytes of
        the copy, where it was whole without what was read before, else 0. Result: is another part looked at from now
        on?
        """
        if needed or self.bridged:
            self.bridged = max(self.bridged, needed) if whole else 0
            self.outer, self.due = None, True
            return False
        if self.outer is None or beyond.outer is not self.outer:
            return False
        if whole:
            self._useful, self._patience = self.outer.number, 0
            self._joined += 1
            if self._joined >= _SURE_AFTER:
                self.reach, self._joined = max(self.reach // 2, _LEAST), 0
            return False
        if beyond.spots and missing and not any(0 <= missing - spot.avma < len(spot.data) for spot in beyond.spots):
            place = (missing & -8) + 8
            if place not in self.places:
                self.places.append(place)
            return True
        self._joined = 0
        self.reach = min(2 * self.reach, most)
        self.due = True
        if self._useful != self.outer.number:
            self._patience = self.rest = min(2 * self._patience + 1, _MOST_REST)
        return False


def pieces(spans: list[tuple[int, int]], data: memoryview) -> tuple[Piece, ...]:
    """What was read of some spans one behind the other, as far as it goes."""
    found, at = [], 0
    for avma, size in spans:
        if at + size > len(data):
            break
        found.append(Piece(avma, bytes(data[at : at + size])))
        at += size
    return tuple(found)
