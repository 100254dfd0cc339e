"""Batches of samples in columns. Every collector produces them, and the unwinder consumes them.

A thread of a Go program leaves its goroutine's stack for calls of C, for parts of the runtime and for signal handlers.
The registers with which the goroutine's stack continues stand in the struct g of the goroutine (runtime/runtime2.go). A
sample then has pieces with that struct and with the goroutine's stack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field, replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.interpreter_frames import Chain
from pyprof.model.marker_frames import KernelStack, Mark
from pyprof.model.thread_identity import Labels, ThreadKey, read_program_labels

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
_T = TypeVar("_T")
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]


class SampleKind(IntEnum):
    """The way in which a sample was taken. It determines what is known about the sample."""

    STOPPED = 0  # all registers and the stack, at one moment
    BLOCKED = 1  # read without a stop while the thread slept: sp, pc and the stack; no other register
    UNCHANGED = 2  # the thread has not run since its last sample, whose stack is used again; nothing is copied
    UNSEEN = 3  # of the stack, only the kernel frames are known (kernel_stack)
    LOST = 4  # time that a thread ran while records of its samples were lost


@dataclass(frozen=True)
class Piece:
    """Additional memory of one sample: bytes that were copied from an address of the target (avma)."""

    avma: int
    data: bytes | memoryview


@dataclass(frozen=True, eq=False)
class OuterStack:
    """The outer part of a deep stack, which was read once while its thread ran.

    Attributes:
        avma: Address of the first word.
        words: The words up to the end of the stack.
        number: A unique number.
    """

    avma: int
    words: npt.NDArray[np.unsignedinteger]
    number: int

    @property
    def end(self) -> int:
        return self.avma + self.words.nbytes


@dataclass(frozen=True, slots=True)
class StackBeyondCopy:
    """The known facts about the part of a stack that one sample's copy does not contain.

    Attributes:
        length: Bytes from the base of the copy to the end of the stack.
        outer: The outer part as it was read once, None if it never was.
        spots: Parts of the outer stack that were read together with the sample.
        longest: Maximum of the stack's length so far.
        exact: True if the outer part with the spots over it is the memory at the time of the sample.
    """

    length: int
    outer: OuterStack | None = None
    spots: tuple[Piece, ...] = ()
    longest: int = 0
    exact: bool = False


@dataclass(frozen=True)
class StackSlab:
    """All stack copies of a batch in one flat array.

    Attributes:
        data: The bytes of all copies, uint8. Every copy starts at a multiple of 8.
        base: (n,) Address (avma) of each copy.
        offset: (n,) Offset of each copy in data.
        size: (n,) Bytes of each copy.
        pieces: Additional memory by sample index (a stack that a signal handler on an alternate stack interrupted).
        beyond: By sample index, for a stack that is longer than its copy: what is known about the rest.
    """

    data: U8
    base: U64
    offset: I64
    size: I64
    pieces: Mapping[int, tuple[Piece, ...]] = field(default_factory=dict)
    beyond: Mapping[int, StackBeyondCopy] = field(default_factory=dict)

    def alone(self) -> StackSlab:
        """Return these stack copies in new memory, one directly after the other.

        The original lies in the kernel's ring buffer, between other data, and the kernel will overwrite it.
        """
        ends = np.cumsum((self.size + 7) & ~7)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        data = np.zeros(int(ends[-1]), np.uint8)
        for start, offset, size in zip(starts.tolist(), self.offset.tolist(), self.size.tolist(), strict=True):
            data[start : start + size] = self.data[offset : offset + size]
        return replace(self, data=data, base=self.base.copy(), offset=starts)

    def without_data(self) -> StackSlab:
        """Return the addresses and sizes of the stack copies without their bytes."""
        return replace(self, data=np.zeros(0, np.uint8), pieces={})


class Surroundings(NamedTuple):
    """Marker frames around a sample's stack that say more about it: the lock for which its thread waits, or the thread
    that ended its wait.

    Attributes:
        outer: Marker outside of the stack.
        inner: Marker inside the stack.
        waker: The sample, as (tid, time_ns), whose stack is added inside the inner marker; (0, 0) if there is none.
    """

    outer: Mark | None = None
    inner: Mark | None = None
    waker: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class SampleBatch:
    """A batch of n samples of one architecture. Columns have shape (n,), regs (n, len(arch.registers)).

    Attributes:
        arch: The architecture.
        kind: SampleKind of each sample.
        time_ns: Nanoseconds of CLOCK_MONOTONIC. Samples of one thread are in time order.
        tid: Thread of each sample.
        pid: Process of each sample.
        space: AddressSpace.id, a key of spaces.
        cpu: Processor of each sample, -1 if unknown.
        weight: Number of sampling periods that the sample stands for (more than 1 if the collector skipped some).
        regs: Registers of each sample. Those that a BLOCKED sample does not know are 0.
        stack: Copies of the stacks.
        spaces: Address spaces by AddressSpace.id.
        unknown: Columns of regs that no sample knows (a core file without floating-point registers). pc, sp, fp and lr
            are always known.
        chains: Interpreter frames by sample index.
        kernel_stack: Index into kernel_stacks.
        kernel_stacks: Distinct kernel stacks; the first is ().
        followed: True if later UNCHANGED samples may repeat the stacks of these.
        stopped: True if a stop by ptrace took the STOPPED samples. Such a stop does not end a thread's sleep.
        length_ns: Time that each sample stands for, -1 if `weight` gives it; None if it does for all.
        source_id: The collector that gets the Feedback of this batch, 0 for none.
        started: Start time of each thread (see ThreadKey), None if unknown for all.
        reference_only: True if the samples stand for no time. Stacks of other samples refer to theirs.
        around: Context of stacks by sample index.
        labels: Labels that the program has set for its work, by sample index. A sample without an entry has none, or is
            UNCHANGED and was not read.
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
    reference_only: bool = False
    around: Mapping[int, Surroundings] = field(default_factory=dict)
    labels: Mapping[int, Labels] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def take_samples(self, lanes: I64) -> SampleBatch:
        """Return the samples of a batch with these indices, over the same stack bytes.

        Args:
            lanes: (k,) int64 indices of samples, ascending.
        """
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
            labels=_renumbered(self.labels, lanes) if self.labels else self.labels,
        )


def keys_of(batch: SampleBatch) -> set[ThreadKey]:
    """Return the keys of all threads that have samples in a batch."""
    started = np.zeros(len(batch), np.int64) if batch.started is None else batch.started
    return {*map(ThreadKey, batch.pid.tolist(), batch.tid.tolist(), started.tolist())}


def _renumbered(by_lane: Mapping[int, _T], lanes: I64) -> dict[int, _T]:
    return {new: by_lane[old] for new, old in enumerate(lanes.tolist()) if old in by_lane}


MAX_LABELS = 8
"""Maximum number of labels of a goroutine that are read."""
MAX_LABEL_NAME, MAX_LABEL_VALUE = 64, 176
"""Maximum number of bytes of a label's name and value that are read. The BPF program has the same limits."""
_WORDS = struct.Struct("=3Q")

GOROUTINE_WORD = 1 << 63
"""Artificial address of the Piece that contains the address of the thread's goroutine (its struct g). No process has
memory there: on all architectures of Go that are sampled it belongs to the kernel, or to nothing.
"""


def make_goroutine_pieces(goroutine: int, head: bytes, base: int, stack: bytes) -> tuple[Piece, ...]:
    """Return what a sample copied from memory if its thread has left the stack of its goroutine (a Go coroutine).

    The unwinder finds the goroutine by the first piece, and continues on its stack in the last one.

    Args:
        goroutine: Address of the goroutine's struct g.
        head: Copy of the memory at that address.
        base: Address of the first needed word of the goroutine's stack.
        stack: Copy of the goroutine's stack from `base` on.
    """
    return make_goroutine_piece(goroutine), Piece(goroutine, head), Piece(base, stack)


def make_goroutine_piece(goroutine: int) -> Piece:
    """Return the piece of a sample that says which goroutine its thread runs, by the address of its struct g."""
    return Piece(GOROUTINE_WORD, struct.pack("=Q", goroutine))


def read_goroutine_labels(read: Callable[[int, int], bytes], labels: int) -> Labels | None:
    """Return the labels of a goroutine (runtime/pprof.SetGoroutineLabels), None if not all can be read.

    Up to Go 1.23 they are a map: its number of entries, a word with the exponent of the number of buckets, and the
    address of the first bucket with eight bytes of hashes, eight names and eight values. From Go 1.24 on they are a
    slice of names and values. The first word of a map is a small number, and that of a slice's array is an address.

    Args:
        read: Returns memory, less of it where it is not readable.
        labels: The word of struct g that refers to the labels.
    """
    data = read(labels, _WORDS.size) if labels else bytes(_WORDS.size)
    first, number, room = _WORDS.unpack(data) if len(data) == _WORDS.size else (1, 0, 0)
    if not first:
        return ()
    data = read(first, _WORDS.size)
    if len(data) != _WORDS.size:
        return None
    entries, buckets, bucket = _WORDS.unpack(data)
    if entries <= MAX_LABELS and not buckets >> 8 & 0xFF:
        number, names, step = entries, bucket + 8, 16
        values = names + 8 * 16
    elif number <= room:
        names, values, step = first, first + 16, 32
    else:
        return None
    pairs = [
        (_read_text(read, names + at * step, MAX_LABEL_NAME), _read_text(read, values + at * step, MAX_LABEL_VALUE))
        for at in range(min(number, MAX_LABELS))
    ]
    whole = [(name, value) for name, value in pairs if name is not None and value is not None]
    return read_program_labels(whole) if len(whole) == number else None


def _read_text(read: Callable[[int, int], bytes], avma: int, most: int) -> bytes | None:
    """Return the first `most` bytes of a Go string in the target's memory, None if they are not readable."""
    head = read(avma, 16)
    if len(head) != 16:
        return None
    start, size = struct.unpack("=2Q", head)
    data = read(start, min(size, most)) if size else b""
    return data if len(data) == min(size, most) else None
