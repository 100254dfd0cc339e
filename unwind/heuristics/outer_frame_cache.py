"""A cache of the outer frames of each thread's deep stack, so that these are walked only once.

A walk depends on registers, memory and rules only. So a frame has the same callers as in the cached walk if three
things are equal: every register that the walk knows, every word from the frame on, and the rules of the address space.
The rules include those of code that no file describes.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from pyprof.model.sample import SampleBatch
from pyprof.model.walk import StackEnd
from pyprof.records import dataclass
from pyprof.unwind.sample_memory import LaneMemory
from pyprof.unwind.scalar import CachedFrames, LaneWalk, Registers, ScalarWalker

MIN_FRAMES = 256
"""Minimum depth of a walk whose outer frames are cached. Shallower stacks are walked in less time than the lookup
takes.
"""
RED_ZONE = 128
"""Size in bytes of the area below sp in which an interrupted frame may have saved registers."""
_MAX_INNER = 512
"""Maximum number of changed frames for a reuse of cached outer frames. With more of them, the batch walker is
faster.
"""
_RENEW_INNER = 64
_MAX_THREADS = 16
_MAX_BYTES = 4 << 20
_MAX_BACKOFF = 256

U64 = npt.NDArray[np.uint64]


@dataclass(slots=True)
class CachedWalk:
    """A complete walk of a thread whose outer frames later walks may share.

    Attributes:
        base: Address of the stack copy.
        words: The stack copy.
        top: Highest CFA inside the copy.
        states: Registers of each frame.
        frames: The frames as columns.
        at: Index of a frame by its sp; the innermost frame among those with equal sp.
        sps: Stack pointers, ascending.
    """

    base: int
    words: U64
    top: int
    states: list[Registers]
    frames: CachedFrames
    at: dict[int, int]
    sps: list[int]

    @property
    def end(self) -> int:
        return self.base + 8 * len(self.words)


@dataclass(slots=True)
class CacheJoin:
    """The condition under which one sample's walk may continue as a cached walk does. Implements scalar.EarlierWalk.

    Attributes:
        known: The cached walk.
        low: Address from which on the stack is unchanged. The frame and its red zone must lie above it.
        most: Maximum number of frames.
    """

    known: CachedWalk
    low: int
    most: int

    @property
    def top(self) -> int:
        return self.known.top

    def join_cached(self, registers: Registers, sp: int, depth: int) -> CachedFrames | None:
        """Return the callers of a frame if the thread's cached walk contains the frame in the same state, else None.

        Args:
            registers: Registers of the frame.
            sp: Its stack pointer.
            depth: Number of frames found so far.
        """
        known = self.known
        at = known.at.get(sp) if sp >= self.low + RED_ZONE else None
        if at is None or depth + len(known.states) - at - 1 > self.most:
            return None
        state = known.states[at]
        if (state.values, state.exact, state.called) != (registers.values, registers.exact, registers.called):
            return None
        return known.frames.frames_after(at)


@dataclass(slots=True)
class _Waiting:
    """The back-off for a thread whose cached walks were not reused.

    Attributes:
        patience: Number of walks that are skipped after the latest attempt. Each attempt doubles it.
        left: Number of walks still to skip.
    """

    patience: int = 0
    left: int = 0


class StackCache:
    """The cached walks of deep stacks of the threads of one address space."""

    def __init__(self) -> None:
        self._known: dict[int, CachedWalk] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._rules = (0, 0)

    def __bool__(self) -> bool:
        return bool(self._known)

    def renew(self, rules: tuple[int, int]) -> None:
        """Clear the cache of walks if the unwind rules have changed.

        Args:
            rules: Value that differs whenever rules may have changed.
        """
        if rules != self._rules:
            self._rules = rules
            self._known.clear()
            self._waiting.clear()

    def has_thread(self, tid: int) -> bool:
        return tid in self._known

    def walk(self, batch: SampleBatch, lane: int, registers: Registers, walker: ScalarWalker) -> LaneWalk | None:
        """Unwind a sample to where it meets the cached walk of its thread. Returns None if the cache does not help."""
        tid = int(batch.tid[lane])
        known = self._known[tid]
        memory = LaneMemory(batch, lane)
        low = _unchanged(known, batch, lane)
        if low is None or bisect_left(known.sps, low) > _MAX_INNER:
            return None
        walk = walker.walk(registers, memory, True, CacheJoin(known, low, walker.max_depth))
        if walk.tail is not None:
            self._waiting.pop(tid, None)
            if len(walk.frames) > _RENEW_INNER:
                self._remember(tid, batch, lane, walk)
        return walk

    def cache_walk(self, batch: SampleBatch, lane: int, registers: Registers, walker: ScalarWalker) -> None:
        """Cache the walk of a deep stack that was walked completely.

        Skips threads whose earlier cached walks were not reused.
        """
        tid = int(batch.tid[lane])
        waiting = self._waiting.setdefault(tid, _Waiting())
        if waiting.left > 0:
            waiting.left -= 1
            return
        waiting.patience = min(2 * waiting.patience + 1, _MAX_BACKOFF)
        waiting.left = waiting.patience
        if batch.stack.size[lane] <= _MAX_BYTES:
            self._remember(tid, batch, lane, walker.walk(registers, LaneMemory(batch, lane), True))

    def _remember(self, tid: int, batch: SampleBatch, lane: int, walk: LaneWalk) -> None:
        states, frames = walk.registers, _columns(walk)
        if states is None or walk.end is not StackEnd.ROOT:
            return
        if walk.tail is not None:
            states = states + self._known[tid].states[-len(walk.tail) :] if len(walk.tail) else states
        sps = frames.sp.tolist()
        if len(states) != len(sps) or sorted(sps) != sps:
            return
        if tid not in self._known and len(self._known) >= _MAX_THREADS:
            self._known.clear()
        at = {sp: n for n, sp in reversed(list(enumerate(sps)))}
        words = _words(batch, lane).copy()
        self._known[tid] = CachedWalk(int(batch.stack.base[lane]), words, walk.top, states, frames, at, sps)


def _words(batch: SampleBatch, lane: int) -> U64:
    """Return a view of a sample's stack copy as words."""
    stack = batch.stack
    offset, size = int(stack.offset[lane]), int(stack.size[lane])
    return stack.data[offset : offset + (size & ~7)].view(np.uint64)


def _unchanged(known: CachedWalk, batch: SampleBatch, lane: int) -> int | None:
    """Return the address from which on the sample's stack copy equals the cached one, or None if one of them is too
    short.
    """
    words, base = _words(batch, lane), int(batch.stack.base[lane])
    end = base + 8 * len(words)
    if (base ^ known.base) & 7 or end < known.top or known.end < known.top:
        return None
    low, high = max(base, known.base), min(end, known.end)
    if low >= high:
        return None
    own = words[(low - base) >> 3 : (high - base) >> 3]
    differ = np.flatnonzero(own != known.words[(low - known.base) >> 3 : (high - known.base) >> 3])
    return low + 8 * (int(differ[-1]) + 1) if len(differ) else low


def _columns(walk: LaneWalk) -> CachedFrames:
    """Return all frames of a walk as columns, including its tail."""
    inner = CachedFrames.from_frames(walk.frames)
    return inner if walk.tail is None else inner.followed_by(walk.tail)
