"""The result of unwinding: frames of all samples, the source of each frame, and why each stack ended."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.loss_reason_texts import ENDS


def lookup_pcs(pc: npt.NDArray[np.uint64], exact: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Return the addresses for lookups of frames: pc, or pc - 1 for a return address, which points behind its call."""
    return pc - (~exact).astype(np.uint64)


def lookup_pc(pc: int, exact: bool) -> int:
    """Return the address for the lookup of one frame's rule and name: pc, or pc - 1 for a return address."""
    return pc if exact else (pc - 1) & 0xFFFFFFFFFFFFFFFF


_MAX_PACKED = 1 << 17
_PC_BITS = 57


def unpacked(word: int) -> tuple[int, bool, int]:
    """Return (pc, exact, trust) of a frame from a 64-bit word of Walk.packed()."""
    return word & (1 << _PC_BITS) - 1, bool(word >> 63), word >> _PC_BITS & 63


class Trust(IntEnum):
    """The kind of source that found a frame, such as unwind tables, frame pointers or a heuristic. It is the source of
    the rule that was applied to the callee.
    """

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
    GO = 17
    HOTSPOT = 18
    CODE = 19
    V8 = 20
    PDATA = 21

    @property
    def label(self) -> str:
        return self.name.lower()


class StackEnd(IntEnum):
    """The reason why the unwinder stopped. Each sample has one value; none is raised as an error."""

    RUNNING = 0  # only seen during the walk
    ROOT = 1  # a rule says that there is no caller
    NO_RULE = 2  # pc is outside of every table, and the fallback failed
    UNREADABLE = 3  # needed a word that is not in the stack copy
    STUCK = 4  # the CFA did not increase
    DEPTH = 5  # reached max_depth
    LATE = 6  # not unwound, because the deadline had passed
    GONE = 7  # nothing of the stack existed any more: the process had exited, or was in exec
    UNWINDER = 8  # the code was replacing its registers by those of another frame: an exception, longjmp

    @property
    def label(self) -> str:
        """The name of the stack's end in JSON."""
        return self.name.lower()

    @property
    def words(self) -> str:
        """The description of the stack's end that all outputs show to users."""
        return ENDS[self.label].title


@dataclass(frozen=True, eq=False)
class SharedFrames:
    """The outer frames of a deep stack that many samples of a batch have in common, innermost first, up to its root.
    They are stored once, in columns as those of Walk.

    Attributes:
        before: (older frames, i, j): these frames from index j on are equal to the older frames from index i on. None
            if no older ones are known.
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
    """The frames of n samples in CSR form: sample i has the frames start[i] .. start[i+1], innermost first.

    Attributes:
        start: (n + 1,) First frame of each sample.
        pc: (m,) uint64 as found; a return address is not decremented.
        exact: (m,) bool. True if pc is the pc itself (innermost, or interrupted by a signal). False for a return
            address, which is looked up at pc - 1.
        trust: (m,) uint8 Trust.
        sp: (m,) uint64 stack pointer of the frame (for a caller: before the call), 0 if unknown. Frame i has the stack
            bytes from sp[i] to sp[i + 1].
        end: (n,) uint8 StackEnd.
        missing: (n,) uint64 avma of the word that an UNREADABLE sample lacks, else 0.
        top: (n,) uint64 highest CFA: how far up the stack the walk looked.
        lacks_register: (n,) bool. True if the walk ended because its sample does not know a register
            (SampleKind.BLOCKED). A sample that is taken by a stop would continue.
        shared: (shared frames, index) by sample index. The sample's stack continues with the shared frames from that
            index on.
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

    def take_samples(self, lanes: npt.NDArray[np.int64]) -> Walk:
        """Return the unwound frames of the samples with these indices. The walk must have no shared frames."""
        counts = np.diff(self.start)[lanes]
        start = np.zeros(len(lanes) + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        at = np.arange(start[-1]) + np.repeat(self.start[lanes] - start[:-1], counts)
        pc, exact, trust, sp = self.pc[at], self.exact[at], self.trust[at], self.sp[at]
        end, missing, top, lacks = self.end[lanes], self.missing[lanes], self.top[lanes], self.lacks_register[lanes]
        return Walk(start, pc, exact, trust, sp, end, missing, top, lacks)

    def with_lanes(self, lanes: npt.NDArray[np.int64], other: Walk) -> Walk:
        """Return a copy of this walk with the frames of some samples replaced by those of another walk. Both must have
        no shared frames.

        Args:
            lanes: Indices of the samples to replace, in the order of the samples of `other`.
            other: The other walk.
        """
        start = np.concatenate([self.start, self.start[-1] + other.start[1:]])
        pairs = zip(self._columns(), other._columns(), strict=True)
        both = Walk(start, *(np.concatenate(pair) for pair in pairs))  # type: ignore[arg-type]  # all but shared
        which = np.arange(len(self))
        which[lanes] = len(self) + np.arange(len(other))
        return both.take_samples(which)

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.pc, self.exact, self.trust, self.sp, self.end, self.missing, self.top, self.lacks_register

    def packed(self) -> npt.NDArray[np.uint64] | None:
        """Return one 64-bit word for each unwound frame, with its pc, exact and trust. unpacked() is the inverse.

        Returns:
            (m,) uint64. None if a pc does not fit into a word, or there are too many frames.
        """
        if len(self.pc) > _MAX_PACKED or (self.pc >> np.uint64(_PC_BITS)).any():
            return None
        trust, exact = self.trust.astype(np.uint64), self.exact.astype(np.uint64)
        packed: npt.NDArray[np.uint64] = self.pc | trust << np.uint64(_PC_BITS) | exact << np.uint64(63)
        return packed

    def unshare_frames(self) -> Walk:
        """Return the unwound frames with shared frames copied to each sample."""
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
