"""A batch while it is filled: columns of samples and the memory that the stack copies go into."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.libc import Arena
from pyprof.model.arch import Arch
from pyprof.model.interpreter import Chain
from pyprof.model.modules import AddressSpace
from pyprof.model.sample import Beyond, Piece, SampleBatch, SampleKind, StackSlab

MOST_LANES = 4096
_ARENA = 8 << 20
_MOST_ARENA = 64 << 20


class BatchBuilder:
    """Room for MOST_LANES samples and for at least one copy of most_copy bytes with its further pieces."""

    def __init__(self, arches: Sequence[Arch], most_copy: int) -> None:
        """arches: what the lanes may be, the usual one first."""
        self._usual = arches[0]
        self._need = 2 * most_copy + 8192
        self.arena = Arena(max(_ARENA, min(4 * most_copy, _MOST_ARENA), self._need))
        self._view = np.frombuffer(self.arena.data, np.uint8)
        self._regs = np.zeros((MOST_LANES, max(len(arch.registers) for arch in arches)), np.uint64)
        self._known = {arch.name: np.flatnonzero(np.array(arch.prstatus) >= 0) for arch in arches}
        self._slots = {arch.name: np.array([slot for slot in arch.prstatus if slot >= 0]) for arch in arches}
        self._clear()

    def _clear(self) -> None:
        self.used = 0
        self._kind: list[int] = []
        self._arch: list[Arch] = []
        self._time: list[int] = []
        self._tid: list[int] = []
        self._pid: list[int] = []
        self._space: list[int] = []
        self._weight: list[int] = []
        self._base: list[int] = []
        self._offset: list[int] = []
        self._size: list[int] = []
        self._pieces: dict[int, tuple[Piece, ...]] = {}
        self._beyond: dict[int, Beyond] = {}
        self._spaces: dict[int, AddressSpace] = {}
        self._chains: dict[int, Chain] = {}
        self._tip: dict[int, int] = {}
        self._tips: dict[tuple[int, ...], int] = {(): 0}

    def __len__(self) -> int:
        return len(self._kind)

    def has(self, pid: int) -> bool:
        """Is there a sample of this process?"""
        return pid in self._pid

    @property
    def full(self) -> bool:
        """No room for one more sample: the batch must leave first."""
        return len(self._kind) >= MOST_LANES or self.arena.size - self.used < self._need

    def add(
        self,
        arch: Arch,
        kind: SampleKind,
        time_ns: int,
        tid: int,
        space: AddressSpace,
        weight: int,
        base: int,
        size: int,
    ) -> int:
        """A lane whose copy of size bytes stands at the arena's used. Returns the lane."""
        lane = len(self._kind)
        self._kind.append(kind)
        self._arch.append(arch)
        self._time.append(time_ns)
        self._tid.append(tid)
        self._pid.append(space.pid)
        self._space.append(space.id)
        self._spaces[space.id] = space
        self._weight.append(weight)
        self._base.append(base)
        self._offset.append(self.used)
        self._size.append(size)
        self.used += (size + 7) & ~7
        self._regs[lane] = 0
        return lane

    def set_regset(self, lane: int, words: npt.NDArray[np.unsignedinteger]) -> None:
        """words: the kernel's user_regs_struct of the lane's architecture."""
        name = self._arch[lane].name
        self._regs[lane, self._known[name]] = words[self._slots[name]]

    def set_sp_pc(self, lane: int, sp: int, pc: int) -> None:
        row, arch = self._regs[lane], self._arch[lane]
        row[arch.sp] = sp
        row[arch.pc] = pc

    def add_piece(self, lane: int, piece: Piece) -> None:
        self._pieces[lane] = (*self._pieces.get(lane, ()), piece)

    def set_beyond(self, lane: int, beyond: Beyond) -> None:
        """The lane's stack is longer than its copy."""
        self._beyond[lane] = beyond

    def copy_of(self, lane: int) -> bytes:
        """The lane's stack."""
        at = self._offset[lane]
        return bytes(self.arena.data[at : at + self._size[lane]])

    def set_chain(self, lane: int, chain: Chain) -> None:
        """What an interpreter ran."""
        self._chains[lane] = chain

    def set_tip(self, lane: int, words: tuple[int, ...]) -> None:
        """What stands inside the innermost frame of user code: words of model.kernel."""
        self._tip[lane] = self._tips.setdefault(words, len(self._tips))

    def move(self, lane: int, space: AddressSpace) -> None:
        """The lane turned out to belong to another generation."""
        self._space[lane] = space.id
        self._spaces[space.id] = space

    def take(self) -> list[SampleBatch]:
        """The batches so far, of one architecture each, over the same memory, at least one; the builder starts anew."""
        groups = list(self._groups()) or [(self._usual, [])]
        whole = self._whole()
        if len(groups) == 1:
            batches = [_of(whole, groups[0][0])]
        else:
            batches = [_of(whole.take(np.array(lanes, np.int64)), arch) for arch, lanes in groups]
        self._clear()
        return batches

    def _groups(self) -> Iterator[tuple[Arch, list[int]]]:
        """Lanes by architecture, so that the batches, one after the other, have each thread's lanes in order of time:
        a thread that changed its architecture makes them come in pieces.
        """
        names: dict[int, set[str]] = {}
        for tid, arch in zip(self._tid, self._arch, strict=True):
            names.setdefault(tid, set()).add(arch.name)
        if all(len(of_thread) == 1 for of_thread in names.values()):
            groups: dict[str, tuple[Arch, list[int]]] = {}
            for lane, arch in enumerate(self._arch):
                groups.setdefault(arch.name, (arch, []))[1].append(lane)
            yield from groups.values()
            return
        for _, run in itertools.groupby(range(len(self._arch)), lambda lane: self._arch[lane].name):
            lanes = list(run)
            yield self._arch[lanes[0]], lanes

    def _whole(self) -> SampleBatch:
        """All lanes, as if they were of one architecture, with more columns than it has."""
        n = len(self._kind)
        used = set(self._space)
        tip = np.zeros(n, np.int32)
        tip[list(self._tip)] = list(self._tip.values())
        return SampleBatch(
            arch=self._usual,
            kind=np.array(self._kind, np.uint8),
            time_ns=np.array(self._time, np.int64),
            tid=np.array(self._tid, np.int32),
            pid=np.array(self._pid, np.int32),
            space=np.array(self._space, np.int32),
            cpu=np.full(n, -1, np.int32),
            weight=np.array(self._weight, np.int64),
            regs=self._regs[:n].copy(),
            stack=StackSlab(
                data=self._view[: self.used].copy(),
                base=np.array(self._base, np.uint64),
                offset=np.array(self._offset, np.int64),
                size=np.array(self._size, np.int64),
                pieces=self._pieces,
                beyond=self._beyond,
            ),
            spaces={key: space for key, space in self._spaces.items() if key in used},
            chains=self._chains,
            tip=tip if self._tip else None,
            tips=tuple(self._tips),
        )


def _of(batch: SampleBatch, arch: Arch) -> SampleBatch:
    """The batch with the columns of an architecture. What its register set does not hold is unknown."""
    unknown = frozenset(column for column, slot in enumerate(arch.prstatus) if slot < 0)
    used = set(batch.space.tolist())
    spaces = {key: space for key, space in batch.spaces.items() if key in used}
    return replace(batch, arch=arch, regs=batch.regs[:, : len(arch.registers)], spaces=spaces, unknown=unknown)
