"""A builder of SampleBatch, sample by sample or from columns, and the division of batches at requested flushes.

The builder holds the columns and its memory holds the stack copies. System calls fill an ArenaMemory at a fixed
address. A BytesMemory takes copies that arrive as bytes objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from pyprof.collector_control import NEVER_NS, FlushProtocol
from pyprof.collectors.linux.libc import Arena
from pyprof.lazy_dataclasses import replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.interpreter_frames import Chain
from pyprof.model.marker_frames import KernelStack
from pyprof.model.sample_batch import Piece, SampleBatch, SampleKind, StackBeyondCopy, StackSlab
from pyprof.model.thread_identity import Labels

MAX_LANES = 4096
_ARENA = 8 << 20
_MAX_ARENA = 64 << 20

U8 = npt.NDArray[np.uint8]


def build_stackless_batch(
    arch: Arch,
    source_id: int,
    kind: npt.NDArray[np.uint8],
    time_ns: npt.NDArray[np.int64],
    pid: npt.NDArray[np.integer],
    tid: npt.NDArray[np.integer],
) -> SampleBatch:
    """Return a batch of samples without registers and stacks, with a weight of one sampling period each.

    Callers set further columns with dataclasses.replace.

    Args:
        kind: Kinds of the samples; all columns have the shape (n,).
    """
    n = len(kind)
    zeros = np.zeros(n, np.int64)
    return SampleBatch(
        arch=arch,
        kind=kind,
        time_ns=time_ns,
        tid=tid.astype(np.int32, copy=False),
        pid=pid.astype(np.int32, copy=False),
        space=zeros.astype(np.int32),
        cpu=np.full(n, -1, np.int32),
        weight=np.ones(n, np.int64),
        regs=np.zeros((n, len(arch.registers)), np.uint64),
        stack=StackSlab(np.zeros(0, np.uint8), zeros.astype(np.uint64), zeros, zeros),
        spaces={},
        source_id=source_id,
    )


class StackMemory(Protocol):
    """The protocol of a memory area to which a batch's stack copies are written, one after the other.

    Attributes:
        used: Number of used bytes, a multiple of 8.
    """

    used: int

    @property
    def full(self) -> bool:
        """True if the memory has no room for the stack copy of another sample."""
        ...

    def view_copies(self) -> U8:
        """Return the used part of the memory, which has the stack copies of a batch, as an array of bytes."""
        ...

    def read_copy(self, offset: int, size: int) -> bytes:
        """Return `size` bytes of the stack copies that were written to the memory so far, from `offset` on."""
        ...

    def clear(self) -> None: ...


class ArenaMemory:
    """A StackMemory at a fixed address, with room for at least one stack copy and its additional pieces.

    Code that copies stacks by system calls writes into the unused part.

    Args:
        most_copy: Maximum size of one copy in bytes.

    Attributes:
        address: Address of the first byte.
        further: Number of bytes that the additional pieces of one copy may take.
    """

    def __init__(self, most_copy: int) -> None:
        self.further = most_copy + 8192
        self._need = most_copy + self.further
        arena = Arena(max(_ARENA, min(4 * most_copy, _MAX_ARENA), self._need))
        self._arena = arena
        self.address = arena.address
        self.size = arena.size
        self.bytes = arena.data
        self.used = 0
        self._view = np.frombuffer(arena.data, np.uint8)

    @property
    def full(self) -> bool:
        return self.size - self.used < self._need

    def view_copies(self) -> U8:
        return self._view[: self.used].copy()

    def read_copy(self, offset: int, size: int) -> bytes:
        return bytes(self.bytes[offset : offset + size])

    def clear(self) -> None:
        self.used = 0


class BytesMemory:
    """A StackMemory for stack copies that arrive as bytes objects. It is full when `max_bytes` bytes are used."""

    def __init__(self, max_bytes: int) -> None:
        self._most = max_bytes
        self.used = 0
        self._copies: list[bytes] = []

    @property
    def full(self) -> bool:
        return self.used >= self._most

    def append_copy(self, copy: bytes) -> None:
        """Append the bytes of the next sample's stack copy to the memory of the batch."""
        self._copies.append(copy + bytes(-len(copy) % 8))

    def view_copies(self) -> U8:
        return np.frombuffer(b"".join(self._copies), np.uint8)

    def read_copy(self, offset: int, size: int) -> bytes:
        return b"".join(self._copies)[offset : offset + size]

    def clear(self) -> None:
        self.used = 0
        self._copies = []


class Lane(NamedTuple):
    """The values that describe one sample of a batch, except registers and stack. `started` is the start time
    of the thread (ThreadKey), `weight` the number of sampling times that the sample stands for.
    """

    arch: Arch
    kind: SampleKind
    time_ns: int
    pid: int
    tid: int
    space: AddressSpace
    weight: int
    started: int = 0


class _Copy(NamedTuple):
    base: int
    offset: int
    size: int


_NO_COPY = _Copy(0, 0, 0)

Memory = TypeVar("Memory", bound=StackMemory)


class BatchBuilder(Generic[Memory]):
    """A builder that collects samples one by one and turns them into batches (SampleBatch)."""

    def __init__(
        self, arches: Sequence[Arch], memory: Memory, source_id: int, unknown: frozenset[int] | None = None
    ) -> None:
        """Create a builder of sample batches.

        Args:
            arches: Possible architectures of the samples, the most common first.
            memory: Memory of the stack copies.
            source_id: Identifier of the collector that yields the batches.
            unknown: Register columns that no sample has. None means those that the kernel's register sets lack.
        """
        self.memory = memory
        self._source_id = source_id
        self._usual = arches[0]
        self._unknown = unknown
        self._regs = np.zeros((MAX_LANES, max(len(arch.registers) for arch in arches)), np.uint64)
        self._known = {arch.name: np.flatnonzero(np.array(arch.kernel.prstatus) >= 0) for arch in arches}
        self._slots = {arch.name: [slot for slot in arch.kernel.prstatus if slot >= 0] for arch in arches}
        self._clear()

    def _clear(self) -> None:
        self.memory.clear()
        self._lanes: list[Lane] = []
        self._copies: list[_Copy] = []
        self._pieces: dict[int, tuple[Piece, ...]] = {}
        self._beyond: dict[int, StackBeyondCopy] = {}
        self._chains: dict[int, Chain] = {}
        self._labels: dict[int, Labels] = {}
        self._regsets: dict[str, dict[int, bytes]] = {}
        self._kernel_stack: dict[int, int] = {}
        self._kernel_stacks: dict[KernelStack, int] = {(): 0}

    def __len__(self) -> int:
        return len(self._lanes)

    def has_sample_of(self, pid: int) -> bool:
        """Return True if the builder has a sample of the process with this pid."""
        return any(lane.pid == pid for lane in self._lanes)

    @property
    def full(self) -> bool:
        """True if the builder has no room for another sample: the caller must take the batches first."""
        return len(self._lanes) >= MAX_LANES or self.memory.full

    def add_sample(self, lane: Lane, base: int, size: int) -> int:
        """Add a sample whose stack copy was written at the end of the used memory.

        Args:
            base: Address (avma) of the copy in the target.
            size: Size of the copy in bytes.

        Returns:
            Number of the sample in the batch.
        """
        number, memory = len(self._lanes), self.memory
        self._lanes.append(lane)
        self._copies.append(_Copy(base, memory.used, size))
        memory.used += (size + 7) & ~7
        self._regs[number] = 0
        return number

    def reserve_samples(self, count: int, used: int) -> int:
        """Reserve room for consecutive samples, whose values the caller must set with fill_reserved() before any other
        use of the builder.

        Args:
            count: Number of samples.
            used: Number of used bytes of the memory, including the stack copies of these samples.

        Returns:
            Number of the first sample in the batch.
        """
        number = len(self._lanes)
        self._lanes.extend([cast(Lane, None)] * count)
        self._copies.extend([_NO_COPY] * count)
        self._regs[number : number + count] = 0
        self.memory.used = used
        return number

    def fill_reserved(self, number: int, lane: Lane, base: int, offset: int, size: int) -> None:
        """Set the columns of a reserved sample, whose stack copy begins at `offset` in the memory for copies."""
        self._lanes[number] = lane
        self._copies[number] = _Copy(base, offset, size)

    def set_regset(self, lane: int, words: npt.NDArray[np.unsignedinteger]) -> None:
        """Set a sample's registers from the words of the kernel's user_regs_struct of its architecture.

        The words are copied to the register columns in take_batches(), for all samples at once.
        """
        self._regsets.setdefault(self._lanes[lane].arch.name, {})[lane] = words.tobytes()

    def _take_regsets(self) -> None:
        for name, found in self._regsets.items():
            arch, lanes = self._lanes[next(iter(found))].arch, np.array(list(found), np.int64)
            words = np.frombuffer(b"".join(found.values()), f"u{arch.word}").reshape(len(found), -1)
            self._regs[np.ix_(lanes, self._known[name])] = words[:, self._slots[name]]

    def set_registers(self, lane: int, row: Sequence[int] | npt.NDArray[np.uint64]) -> None:
        """Set a sample's registers from values in the order of its architecture's register columns."""
        self._regs[lane, : len(row)] = np.asarray(row, np.uint64)

    def set_sp_pc(self, lane: int, sp: int, pc: int) -> None:
        row, arch = self._regs[lane], self._lanes[lane].arch
        row[arch.sp] = sp
        row[arch.pc] = pc

    def add_pieces(self, lane: int, pieces: Iterable[Piece]) -> None:
        """Add pieces of memory to a sample in addition to its main stack copy, such as a part of a second stack."""
        self._pieces[lane] = (*self._pieces.get(lane, ()), *pieces)

    def set_beyond(self, lane: int, beyond: StackBeyondCopy) -> None:
        """Set what is known about the part of a sample's stack that lies outside the stack copy."""
        self._beyond[lane] = beyond

    def copy_of(self, lane: int) -> bytes:
        """Return the bytes of a collected sample's stack copy."""
        copy = self._copies[lane]
        return self.memory.read_copy(copy.offset, copy.size)

    def set_chain(self, lane: int, chain: Chain) -> None:
        """Set the interpreter frames of one sample of the batch (its chain)."""
        self._chains[lane] = chain

    def set_labels(self, lane: int, labels: Labels) -> None:
        """Set the labels of one sample: names and values with which the target marked its current work (as
        runtime/pprof does).
        """
        self._labels[lane] = labels

    def set_kernel_stack(self, lane: int, frames: KernelStack) -> None:
        """Set the kernel frames of one sample of the batch."""
        self._kernel_stack[lane] = self._kernel_stacks.setdefault(frames, len(self._kernel_stacks))

    def move_to_space(self, lane: int, space: AddressSpace) -> None:
        """Assign a collected sample to another address space of its process, because its mappings have changed."""
        self._lanes[lane] = self._lanes[lane]._replace(space=space)

    def take_batches(self) -> list[SampleBatch]:
        """Return the collected samples as batches and reset the builder.

        Each batch has one architecture; all share one memory. There is at least one batch, which may be empty.
        """
        self._take_regsets()
        groups = list(self._groups()) or [(self._usual, [])]
        whole = self._whole()
        if len(groups) == 1:
            batches = [self._of(whole, groups[0][0])]
        else:
            batches = [self._of(whole.take_samples(np.array(lanes, np.int64)), arch) for arch, lanes in groups]
        self._clear()
        return batches

    def _groups(self) -> Iterator[tuple[Arch, list[int]]]:
        """Yield (architecture, indices of samples): groups of samples with one architecture each. The groups, one after
        the other, keep each thread's samples in order of time.

        If a thread has changed its architecture, there is one group for each run of samples with one architecture.
        """
        names: dict[int, set[str]] = {}
        for lane in self._lanes:
            names.setdefault(lane.tid, set()).add(lane.arch.name)
        if all(len(of_thread) == 1 for of_thread in names.values()):
            groups: dict[str, tuple[Arch, list[int]]] = {}
            for number, lane in enumerate(self._lanes):
                groups.setdefault(lane.arch.name, (lane.arch, []))[1].append(number)
            yield from groups.values()
            return
        for _, run in itertools.groupby(range(len(self._lanes)), lambda number: self._lanes[number].arch.name):
            numbers = list(run)
            yield self._lanes[numbers[0]].arch, numbers

    def _whole(self) -> SampleBatch:
        """Return all collected samples as one batch that has the register columns of every architecture."""
        n = len(self._lanes)
        _, kind, time_ns, pid, tid, spaces, weight, started = zip(*self._lanes, strict=True) if n else [()] * 8
        base, offset, size = zip(*self._copies, strict=True) if n else [()] * 3
        bare = build_stackless_batch(
            self._usual,
            self._source_id,
            np.array(kind, np.uint8),
            np.array(time_ns, np.int64),
            np.array(pid, np.int32),
            np.array(tid, np.int32),
        )
        kernel_stack = np.zeros(n, np.int32)
        kernel_stack[list(self._kernel_stack)] = list(self._kernel_stack.values())
        return replace(
            bare,
            space=np.array([space.id for space in spaces], np.int32),
            weight=np.array(weight, np.int64),
            regs=self._regs[:n].copy(),
            stack=StackSlab(
                data=self.memory.view_copies(),
                base=np.array(base, np.uint64),
                offset=np.array(offset, np.int64),
                size=np.array(size, np.int64),
                pieces=self._pieces,
                beyond=self._beyond,
            ),
            spaces={space.id: space for space in spaces},
            chains=self._chains,
            labels=self._labels,
            kernel_stack=kernel_stack if self._kernel_stack else None,
            kernel_stacks=tuple(self._kernel_stacks),
            started=np.array(started, np.int64),
        )

    def _of(self, batch: SampleBatch, arch: Arch) -> SampleBatch:
        """Return a batch with only the register columns of one architecture. Registers that its register set lacks
        become unknown.
        """
        unknown = self._unknown
        if unknown is None:
            unknown = frozenset(column for column, slot in enumerate(arch.kernel.prstatus) if slot < 0)
        used = set(batch.space.tolist())
        spaces = {key: space for key, space in batch.spaces.items() if key in used}
        return replace(batch, arch=arch, regs=batch.regs[:, : len(arch.registers)], spaces=spaces, unknown=unknown)


Completion = Callable[[list[SampleBatch], int], Iterator[SampleBatch]]
"""The type of a function (batches, until_ns) that yields the given batches together with the samples of other
sources up to until_ns.
"""


def as_they_are(batches: list[SampleBatch], _until_ns: int) -> Iterator[SampleBatch]:
    """Yield batches unchanged. It is passed as `complete` to split_at_flushes() by collectors whose batches need no
    samples of other collectors.
    """
    return iter(batches)


def split_at_flushes(
    handover: FlushProtocol, batches: list[SampleBatch], reached_ns: int, complete: Completion = as_they_are
) -> Iterator[SampleBatch]:
    """Yield batches in parts that end where a flush was requested, and acknowledge each flush. Samples from after the
    end of the recording, which a late profiler takes, are left out.

    Args:
        handover: The flushes of the recording.
        batches: At least one batch. These and earlier ones hold all samples before reached_ns.
        reached_ns: Time up to which the samples are complete, which is the end of the last part.
        complete: Function that yields a part together with the samples of other sources from the same time.
    """
    nothing = batches[0].take_samples(np.zeros(0, np.int64))
    reached_ns = min(reached_ns, handover.limit_ns)
    end_ns = min(handover.ended_ns or NEVER_NS, handover.limit_ns)
    if end_ns < NEVER_NS:
        batches = _part(batches, end_ns, early=True)
    while True:
        until_ns = handover.bound(reached_ns)
        is_last = until_ns >= reached_ns
        yield from complete(batches if is_last else _part(batches, until_ns, early=True), until_ns)
        if handover.acknowledge_flush(until_ns):
            yield nothing
        if is_last:
            return
        batches = _part(batches, until_ns, early=False)


def _part(batches: Iterable[SampleBatch], until_ns: int, early: bool) -> list[SampleBatch]:
    return [batch.take_samples(np.flatnonzero((batch.time_ns <= until_ns) == early)) for batch in batches]
