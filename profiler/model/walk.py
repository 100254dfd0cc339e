"""What a walk found: frames of all lanes, how each was found, and why each lane ended."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.model.reasons import ENDS
from pyprof.records import dataclass, field


def lookup_pcs(pc: npt.NDArray[np.uint64], exact: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Where to look frames up: a return address points past its call, into what may be the next function."""
    return pc - (~exact).astype(np.uint64)


def lookup_pc(pc: int, exact: bool) -> int:
    """lookup_pcs of one frame, wrapping like it."""
    return pc if exact else (pc - 1) & 0xFFFFFFFFFFFFFFFF


_MOST_PACKED = 1 << 17
_PC_BITS = 57


def unpacked(word: int) -> tuple[int, bool, int]:
    """pc, exact and trust of a word of Walk.packed()."""
    return word & (1 << _PC_BITS) - 1, bool(word >> 63), word >> _PC_BITS & 63


class Trust(IntEnum):
    """Which source found a frame: the one whose rule was applied to the frame inside it. Rows of frame_sources."""

    CONTEXT = 0
    SFRAME = 1
    EH_FRAME = 2
    DEBUG_FRAME = 3
    EXIDX = 4
    BREAKPAD = 5
    LIBUNWIND_DYNAMIC = 6
    GDB_JIT = 7
    JITDUMP = 8
    FP = 9
    LR = 10
    SIGRETURN = 11
    SCAN = 12
    EPILOGUE = 13
    INTERPRETER = 14
    COMPLETED = 16
    KERNEL = 15

    @property
    def label(self) -> str:
        return self.name.lower()


class StackEnd(IntEnum):
    """Why a walk stopped; one value per sample, never raised."""

    RUNNING = 0  # only seen inside the walk
    ROOT = 1  # the rule says: no caller
    NO_RULE = 2  # pc outside every table, and the fallback refused
    UNREADABLE = 3  # needed a word that the stack copy does not hold
    STUCK = 4  # the cfa did not move up
    DEPTH = 5  # hit max_depth
    LATE = 6  # not walked: no time was left
    GONE = 7  # nothing of the stack was there any more: the process had ended, or was in exec
    UNWINDER = 8  # the code was replacing its own registers by those of another frame: an exception, longjmp

    @property
    def label(self) -> str:
        """As in JSON."""
        return self.name.lower()

    @property
    def words(self) -> str:
        """As people read it, in every output."""
        return ENDS[self.label].words


@dataclass(frozen=True, eq=False)
class SharedFrames:
    """The frames of a deep stack that many lanes have in common, innermost first, up to its root; columns as in Walk.

    before: (other frames, at, of these): from index `of these` on they are the other ones from `at` on.
    """

    pc: npt.NDArray[np.uint64]
    exact: npt.NDArray[np.bool_]
    trust: npt.NDArray[np.uint8]
    sp: npt.NDArray[np.uint64]
    before: tuple[SharedFrames, int, int] | None = None

    def __len__(self) -> int:
        return len(self.pc)


@dataclass(frozen=True)
class Walk:
    """Frames of n lanes in CSR form: lane i has frames start[i] .. start[i+1], innermost first.

    pc: (m,) uint64, as found (a return address is not decremented). exact: (m,) bool, the pc is the pc itself
    (innermost, or interrupted by a signal), else it is a return address: look it up at pc - 1.
    trust: (m,) uint8 Trust. sp: (m,) uint64, the frame's stack pointer (of a caller: what it was before the call), 0
    where it is not known: on its stack, frame i has the bytes from sp[i] up to sp[i + 1]. end: (n,) uint8 StackEnd.
    missing: (n,) uint64, the avma of the word that an UNREADABLE lane needed, else 0.
    top: (n,) uint64, the highest cfa reached: how far up the stack the walk looked.
    lacks_register: (n,) bool, the lane ended because a register was needed that its sample does not know
    (SampleKind.BLOCKED): a sample taken by a stop would go on.
    shared: lane -> (frames, index): after its own frames the lane has these from the index on.
    """

    start: npt.NDArray[np.int64]
    pc: npt.NDArray[np.uint64]
    exact: npt.NDArray[np.bool_]
    trust: npt.NDArray[np.uint8]
    sp: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint8]
    missing: npt.NDArray[np.uint64]
    top: npt.NDArray[np.uint64]
    lacks_register: npt.NDArray[np.bool_]
    shared: Mapping[int, tuple[SharedFrames, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.end)

    def take(self, lanes: npt.NDArray[np.int64]) -> Walk:
        """The lanes of these indices, of a walk without shared frames."""
        counts = np.diff(self.start)[lanes]
        start = np.zeros(len(lanes) + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        at = np.arange(start[-1]) + np.repeat(self.start[lanes] - start[:-1], counts)
        pc, exact, trust, sp = self.pc[at], self.exact[at], self.trust[at], self.sp[at]
        end, missing, top, lacks = self.end[lanes], self.missing[lanes], self.top[lanes], self.lacks_register[lanes]
        return Walk(start, pc, exact, trust, sp, end, missing, top, lacks)

    def with_lanes(self, lanes: npt.NDArray[np.int64], other: Walk) -> Walk:
        """The same with another walk of these lanes, both without shared frames."""
        start = np.concatenate([self.start, self.start[-1] + other.start[1:]])
        pairs = zip(self._columns(), other._columns(), strict=True)
        both = Walk(start, *(np.concatenate(pair) for pair in pairs))  # type: ignore[arg-type]  # all but shared
        which = np.arange(len(self))
        which[lanes] = len(self) + np.arange(len(other))
        return both.take(which)

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.pc, self.exact, self.trust, self.sp, self.end, self.missing, self.top, self.lacks_register

    def packed(self) -> npt.NDArray[np.uint64] | None:
        """A word of each frame with all that there is to know of it but its place: see unpacked(). None where that is
        not possible, or not worth it.
        """
        if len(self.pc) > _MOST_PACKED or (self.pc >> np.uint64(_PC_BITS)).any():
            return None
        trust, exact = self.trust.astype(np.uint64), self.exact.astype(np.uint64)
        packed: npt.NDArray[np.uint64] = self.pc | trust << np.uint64(_PC_BITS) | exact << np.uint64(63)
        return packed

    def whole(self) -> Walk:
        """The same, with nothing shared."""
        if not self.shared:
            return self
        counts = np.diff(self.start)
        for lane, (frames, at) in self.shared.items():
            counts[lane] += len(frames) - at
        start = np.zeros(len(self) + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        columns = []
        for name in ("pc", "exact", "trust", "sp"):
            own, parts = getattr(self, name), []
            for lane in range(len(self)):
                parts.append(own[self.start[lane] : self.start[lane + 1]])
                if lane in self.shared:
                    frames, at = self.shared[lane]
                    parts.append(getattr(frames, name)[at:])
            columns.append(np.concatenate(parts))
        pc, exact, trust, sp = columns
        return Walk(start, pc, exact, trust, sp, self.end, self.missing, self.top, self.lacks_register)
