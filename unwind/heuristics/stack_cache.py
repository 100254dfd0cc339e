"""The outer part of a deep stack is walked once per thread.

In: a lane, its memory, the kept walk of its thread. Out: where its walk may stop and continue like the kept one. A
walk depends on registers, memory and rules only. So a frame has the callers of the kept walk if all three are equal:
every register that the walk knows, every word from the frame on, and the rules of the address space, with those of
code that no file describes.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from pyprof.model.sample import SampleBatch
from pyprof.model.walk import StackEnd
from pyprof.records import dataclass
from pyprof.unwind.heuristics.cached_frames import CachedFrames
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.scalar import LaneWalk, Registers, ScalarWalker

LEAST_FRAMES = 256
"""Shallower stacks are walked in less time than it takes to look them up."""
RED_ZONE = 128
"""Bytes below sp at which a frame that a signal interrupted may have saved registers."""
_MOST_INNER = 512
"""Where more frames than that have changed, lanes are better walked together."""
_RENEW_INNER = 64
_MOST_THREADS = 16
_MOST_BYTES = 4 << 20
_MOST_PATIENCE = 256

U64 = npt.NDArray[np.uint64]


@dataclass(slots=True)
class CachedWalk:
    """A whole walk. words: the stack copy from base on; states: the registers of each frame; at: index by sp, of the
    innermost of equal ones; sps: ascending.
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
    """Where the walk of one lane may join a known one: at frames whose red zone, too, lies above `low`, from which on
    memory has not changed.
    """

    known: CachedWalk
    low: int
    most: int

    @property
    def top(self) -> int:
        return self.known.top

    def join(self, registers: Registers, sp: int, depth: int) -> CachedFrames | None:
        """The callers of a frame, if an earlier walk met it in the same state. depth: frames so far."""
        known = self.known
        at = known.at.get(sp) if sp >= self.low + RED_ZONE else None
        if at is None or depth + len(known.states) - at - 1 > self.most:
            return None
        state = known.states[at]
        if (state.values, state.exact, state.called) != (registers.values, registers.exact, registers.called):
            return None
        return known.frames.after(at)


@dataclass(slots=True)
class _Waiting:
    """Walks of a thread that were not worth remembering. left: so many batches to go until the next attempt."""

    patience: int = 0
    left: int = 0


class StackCache:
    """Of the threads of one address space."""

    def __init__(self) -> None:
        self._known: dict[int, CachedWalk] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._rules = (0, 0)

    def __bool__(self) -> bool:
        return bool(self._known)

    def renew(self, rules: tuple[int, int]) -> None:
        """rules: another value wherever they may be others than before."""
        if rules != self._rules:
            self._rules = rules
            self._known.clear()
            self._waiting.clear()

    def knows(self, tid: int) -> bool:
        return tid in self._known

    def walk(self, batch: SampleBatch, lane: int, registers: Registers, walker: ScalarWalker) -> LaneWalk | None:
        """The walk of a lane up to where an earlier one goes on; None if it is better walked otherwise."""
        tid = int(batch.tid[lane])
        known = self._known[tid]
        memory = LaneMemory(batch, lane)
        low = _unchanged(known, batch, lane)
        if low is None or bisect_left(known.sps, low) > _MOST_INNER:
            return None
        walk = walker.walk(registers, memory, True, CacheJoin(known, low, walker.max_depth))
        if walk.tail is not None:
            self._waiting.pop(tid, None)
            if len(walk.frames) > _RENEW_INNER:
                self._remember(tid, batch, lane, walk)
        return walk

    def learn(self, batch: SampleBatch, lane: int, registers: Registers, walker: ScalarWalker) -> None:
        """A deep stack that was walked whole without help: worth to be remembered, if that was of use the last time."""
        tid = int(batch.tid[lane])
        waiting = self._waiting.setdefault(tid, _Waiting())
        if waiting.left > 0:
            waiting.left -= 1
            return
        waiting.patience = min(2 * waiting.patience + 1, _MOST_PATIENCE)
        waiting.left = waiting.patience
        if batch.stack.size[lane] <= _MOST_BYTES:
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
        if tid not in self._known and len(self._known) >= _MOST_THREADS:
            self._known.clear()
        at = {sp: n for n, sp in reversed(list(enumerate(sps)))}
        words = _words(batch, lane).copy()
        self._known[tid] = CachedWalk(int(batch.stack.base[lane]), words, walk.top, states, frames, at, sps)


def _words(batch: SampleBatch, lane: int) -> U64:
    """A view of a lane's copy."""
    stack = batch.stack
    offset, size = int(stack.offset[lane]), int(stack.size[lane])
    return stack.data[offset : offset + (size & ~7)].view(np.uint64)


def _unchanged(known: CachedWalk, batch: SampleBatch, lane: int) -> int | None:
    """The address from which on the lane's copy is as the known one; None if it lacks a part of that."""
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
    """All frames of a walk."""
    inner = CachedFrames.of(walk.frames)
    return inner if walk.tail is None else inner.before(walk.tail)
