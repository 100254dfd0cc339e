"""Deep stacks, that is, stacks that are longer than what one ptrace stop copies (--stack-size).

Each stop copies the inner part. The outer part is read once, after the thread runs again; later stops read
only small parts of it. A frame may be so large that its caller's frame is near the root of the stack
(alloca). Then the copy of the stack's end suffices for a walk, and the outer part is not read. Otherwise the
walk decides whether the outer part is unchanged (unwind/heuristics/deep_stacks.py). Its feedback makes the
collector read a missing word, copy more, or read the outer part again.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from functools import partial

import numpy as np

from pyprof.collectors.linux.libc import PtraceCalls
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.sample_batch import OuterStack, Piece, StackBeyondCopy

_MIN_LENGTH = 64 << 10
_OVERLAP = 16 << 10
"""Number of bytes by which a stop's copy of a deep stack must overlap the outer part that was read before."""
_END = 32 << 10
"""Number of the outermost bytes of a deep stack that each stop reads, because a recursion was usually called from
there.
"""
_PLACE = 2048
"""Number of bytes that later stops read below a word of a deep stack which a walk needed and did not find."""
_MAX_PLACES = 32
"""Maximum number of such missed words of a deep stack below which each stop reads."""
_SPOTS = 32
_SPOT = 4096
_MAX_OUTER = 256 << 20
"""Maximum number of bytes that are stored of one deep stack."""
_MAX_ALL = 512 << 20
"""Maximum number of bytes that are stored of all deep stacks together."""
_SLICE = 1 << 20
_MAX_REST = 256
_SURE_AFTER = 64

_numbers = itertools.count(1)
_kept: weakref.WeakSet[OuterStack] = weakref.WeakSet()


@dataclass(slots=True, eq=False)
class DeepStack:
    """The state of a thread's deep stack, which is longer than a stop may copy. Its outer part is read
    separately, while the thread runs.

    Attributes:
        outer: The outer part of the stack, None if it was not read.
        reach: Number of bytes that a stop copies.
        due: True if the outer part must be read, or read again.
        rest: Number of further stops after which the outer part is not read, because reading it was not
            useful before.
        longest: Maximum length of the stack seen so far, in bytes.
        places: Ends of words that walks needed and did not find.
        bridged: Number of bytes of the copy that sufficed for a whole walk, because one large frame reached
            to the root part of the stack; 0 if there was no such walk.
    """

    outer: OuterStack | None = None
    reach: int = _MIN_LENGTH
    due: bool = True
    rest: int = 0
    longest: int = 0
    bridged: int = 0
    places: deque[int] = field(default_factory=partial(deque[int], maxlen=_MAX_PLACES))
    _patience: int = 0
    _useful: int = 0
    _joined: int = 0
    _turn: itertools.count[int] = field(default_factory=itertools.count)

    def choose_copy(self, base: int, max_bytes: int) -> int:
        """Return the number of bytes of a deep stack that the next stop copies, from `base` on.

        If the outer part must be read, it is `max_bytes`. Otherwise it is what unwinding has needed so far,
        and at least the part below the known outer part.
        """
        outer = self.outer
        if self.bridged:
            return min(max_bytes, max(2 * self.bridged, _MIN_LENGTH))
        if outer is None or self.due:
            return max_bytes
        return min(max_bytes, max(self.reach, outer.avma + _OVERLAP - base))

    def choose_ranges(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the memory ranges (avma, size) of a deep stack that a stop reads in addition to its copy, to check if
        the outer part has changed.

        They are spots at equal distances, which are others at each stop, and the spots that walks needed and
        did not find. The part next to the copy and the outermost part are included.
        """
        last = max(first, end - _END)
        stride = max((last - first) // _SPOTS & -8, _SPOT)
        start = first + next(self._turn) * 5 * _SPOT % stride & -8
        parts = [(at, min(at + _SPOT, last)) for at in range(start, last, stride)]
        places = [(max(at - _PLACE, first), min(at, last)) for at in self.places]
        ahead = [(first, min(first + _SPOT, last)), *parts, *places, (last, end)]
        return [(low, high - low) for low, high in ahead if low < high]

    def is_joined(self, base: int, size: int) -> bool:
        """Return True if a copy of a deep stack overlaps the outer part that was read earlier, or if no overlap is
        needed.
        """
        if self.bridged:
            return True
        return self.outer is not None and not self.due and base + size >= self.outer.avma + _OVERLAP

    def can_read_rest(self, length: int) -> bool:
        """Return True if the outer part of a deep stack should be read now. `length` is the length of the
        whole stack in bytes.
        """
        if self.rest > 0:
            self.rest -= 1
            return False
        return length <= _MAX_OUTER and sum(outer.words.nbytes for outer in _kept) + length <= _MAX_ALL

    def read_beyond(self, ptrace: PtraceCalls, pid: int, base: int, copy: memoryview, length: int, word: int) -> None:
        """Read a whole deep stack from `base` on and store it as the outer part. `copy` is its first part,
        which was copied in the stop.
        """
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

    def learn(self, beyond: StackBeyondCopy, reached_root: bool, missing: int, max_bytes: int, needed: int = 0) -> bool:
        """Choose from the walk of one sample how much of a deep stack later stops copy and read.

        Args:
            beyond: The sample's data about the stack beyond the copy.
            reached_root: True if the walk reached the root.
            missing: Address of the word that the walk lacked, 0 for none.
            max_bytes: Maximum number of bytes to copy.
            needed: Number of bytes of the copy that a complete walk needed without the outer part, else 0.

        Returns:
            True if stops read one more spot from now on.
        """
        if needed or self.bridged:
            self.bridged = max(self.bridged, needed) if reached_root else 0
            self.outer, self.due = None, True
            return False
        if self.outer is None or beyond.outer is not self.outer:
            return False
        if reached_root:
            self._useful, self._patience = self.outer.number, 0
            self._joined += 1
            if self._joined >= _SURE_AFTER:
                self.reach, self._joined = max(self.reach // 2, _MIN_LENGTH), 0
            return False
        if beyond.spots and missing and not any(0 <= missing - spot.avma < len(spot.data) for spot in beyond.spots):
            place = (missing & -8) + 8
            if place not in self.places:
                self.places.append(place)
            return True
        self._joined = 0
        self.reach = min(2 * self.reach, max_bytes)
        self.due = True
        if self._useful != self.outer.number:
            self._patience = self.rest = min(2 * self._patience + 1, _MAX_REST)
        return False


def pieces(spans: list[tuple[int, int]], data: memoryview) -> tuple[Piece, ...]:
    """Split data that was read for consecutive memory ranges into one piece for each range. The result ends
    at the first range with missing data.
    """
    found, at = [], 0
    for avma, size in spans:
        if at + size > len(data):
            break
        found.append(Piece(avma, bytes(data[at : at + size])))
        at += size
    return tuple(found)
