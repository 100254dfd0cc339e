"""Samples in columns: what every collector produces and the unwinder consumes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.model.interpreter import Chain
from pyprof.model.kernel import KernelStack
from pyprof.model.keys import ThreadKey
from pyprof.model.markers import Mark
from pyprof.model.modules import AddressSpace
from pyprof.records import dataclass, field, replace

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
_T = TypeVar("_T")
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]


class SampleKind(IntEnum):
    """How a sample was taken, and so what is known."""

    STOPPED = 0  # all registers and the stack, of one moment
    BLOCKED = 1  # read from outside while the thread slept: sp, pc and the stack; no other register
    UNCHANGED = 2  # the thread has not run since its last sample: that sample's stack again, nothing is copied
    UNSEEN = 3  # nothing is known of the stack but what stands inside it (kernel_stack)


@dataclass(frozen=True)
class Piece:
    """Further memory of one lane: bytes that stood at avma."""

    avma: int
    data: bytes


@dataclass(frozen=True, eq=False)
class OuterStack:
    """A deep stack as it was read once while its thread ran: the words from avma on, up to the stack's end. number: no
    other one has it.
    """

    avma: int
    words: npt.NDArray[np.unsignedinteger]
    number: int

    @property
    def end(self) -> int:
        return self.avma + self.words.nbytes


@dataclass(frozen=True, slots=True)
class Beyond:
    """What is known of the stack beyond a lane's copy. length: from the copy's base to the end of the stack. outer: as
    it was read once, None where it never was. spots: parts of it as they were when the sample was taken. longest: the
    most that length was so far.
    """

    length: int
    outer: OuterStack | None = None
    spots: tuple[Piece, ...] = ()
    longest: int = 0


@dataclass(frozen=True)
class StackSlab:
    """All stack copies of a batch in one flat array.

    data: uint8, every copy starts at a multiple of 8. Lane i has the bytes of avma base[i] ..
    base[i] + size[i] at data[offset[i]]. pieces: lane -> further memory (the stack that a signal handler on its own
    stack interrupted). beyond: of lanes whose stack is longer than what is copied of it.
    """

    data: U8
    base: U64
    offset: I64
    size: I64
    pieces: Mapping[int, tuple[Piece, ...]] = field(default_factory=dict)
    beyond: Mapping[int, Beyond] = field(default_factory=dict)

    def alone(self) -> StackSlab:
        """The same copies one behind the other, in memory of their own: those of a ring of the kernel's have other
        things in between, and the kernel will write over them.
        """
        ends = np.cumsum((self.size + 7) & ~7)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        data = np.zeros(int(ends[-1]), np.uint8)
        for start, offset, size in zip(starts.tolist(), self.offset.tolist(), self.size.tolist(), strict=True):
            data[start : start + size] = self.data[offset : offset + size]
        return replace(self, data=data, base=self.base.copy(), offset=starts)

    def without_data(self) -> StackSlab:
        """Where the copies stood, and how long they were; their bytes are gone."""
        return replace(self, data=np.zeros(0, np.uint8), pieces={})


class Surroundings(NamedTuple):
    """What a lane's stack gets beyond its frames. outer: stands outside it. inner: stands inside it. waker: the
    stack of this referred lane, by (tid, time_ns), stands inside that; (0, 0): none does.
    """

    outer: Mark | None = None
    inner: Mark | None = None
    waker: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class SampleBatch:
    """n samples of one architecture. Columns have shape (n,), regs (n, len(arch.registers)).

    kind: SampleKind. time_ns: CLOCK_MONOTONIC. space: AddressSpace.id, a key of spaces. cpu: -1 where not known.
    weight: how many sampling periods the sample stands for (1, more if the collector skipped). Registers that a
    BLOCKED sample does not know are 0 in regs. Lanes of one tid are in time order. unknown: columns of regs that no
    lane knows (a core file without floating-point registers); pc, sp, fp and lr are always known. chains: what an
    interpreter ran, by lane. kernel_stack: index into kernel_stacks, whose first one is (). followed: UNCHANGED lanes
    to come may refer to these. stopped: its STOPPED lanes are of stops, which do not end a sleep. length_ns: the time
    that each lane stands for, where that is known; -1: weight says it. source_id: of the collector that gets this
    batch's Feedback; 0: none. started: when each lane's thread began, see ThreadKey; None: not known of any. referred:
    its lanes stand for no time; stacks of others refer to theirs. around: by lane.
    """

    arch: Arch
    kind: U8
    time_ns: I64
    tid: I32
    pid: I32
    space: I32
    cpu: I32
    weight: I64
    regs: U64
    stack: StackSlab
    spaces: Mapping[int, AddressSpace]
    unknown: frozenset[int] = frozenset()
    chains: Mapping[int, Chain] = field(default_factory=dict)
    kernel_stack: I32 | None = None
    kernel_stacks: tuple[KernelStack, ...] = ((),)
    followed: bool = True
    stopped: bool = True
    length_ns: I64 | None = None
    source_id: int = 0
    started: I64 | None = None
    referred: bool = False
    around: Mapping[int, Surroundings] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, lanes: I64) -> SampleBatch:
        """The lanes of these indices, over the same stack bytes. lanes: (k,) int64, ascending."""
        if len(lanes) == len(self):
            return self
        pieces, beyond = self.stack.pieces, self.stack.beyond
        stack = StackSlab(
            self.stack.data,
            self.stack.base[lanes],
            self.stack.offset[lanes],
            self.stack.size[lanes],
            _renumbered(pieces, lanes) if pieces else pieces,
            _renumbered(beyond, lanes) if beyond else beyond,
        )
        return replace(
            self,
            kind=self.kind[lanes],
            time_ns=self.time_ns[lanes],
            tid=self.tid[lanes],
            pid=self.pid[lanes],
            space=self.space[lanes],
            cpu=self.cpu[lanes],
            weight=self.weight[lanes],
            regs=self.regs[lanes],
            stack=stack,
            chains=_renumbered(self.chains, lanes) if self.chains else self.chains,
            kernel_stack=None if self.kernel_stack is None else self.kernel_stack[lanes],
            length_ns=None if self.length_ns is None else self.length_ns[lanes],
            started=None if self.started is None else self.started[lanes],
            around=_renumbered(self.around, lanes) if self.around else self.around,
        )


def keys_of(batch: SampleBatch) -> set[ThreadKey]:
    """The threads of a batch."""
    started = np.zeros(len(batch), np.int64) if batch.started is None else batch.started
    return {*map(ThreadKey, batch.pid.tolist(), batch.tid.tolist(), started.tolist())}


def _renumbered(by_lane: Mapping[int, _T], lanes: I64) -> dict[int, _T]:
    return {new: by_lane[old] for new, old in enumerate(lanes.tolist()) if old in by_lane}
