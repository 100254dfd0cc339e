"""A batch while it is filled: columns of samples and the memory that the stack copies go into."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pyprof.collectors.libc import Arena
from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.sample import Piece, SampleBatch, SampleKind, StackSlab

MOST_LANES = 4096
_ARENA = 4 << 20
_MOST_ARENA = 64 << 20


class BatchBuilder:
    """Room for MOST_LANES samples and for at least one copy of most_copy bytes with its further pieces."""

    def __init__(self, arch: Arch, most_copy: int) -> None:
        self._arch = arch
        self._need = 2 * most_copy + 8192
        self.arena = Arena(max(_ARENA, min(4 * most_copy, _MOST_ARENA), self._need))
        self._view = np.frombuffer(self.arena.data, np.uint8)
        self._regs = np.zeros((MOST_LANES, len(arch.registers)), np.uint64)
        self._slots = np.array(arch.prstatus)
        self._clear()

    def _clear(self) -> None:
        self.used = 0
        self._kind: list[int] = []
        self._time: list[int] = []
        self._tid: list[int] = []
        self._pid: list[int] = []
        self._space: list[int] = []
        self._weight: list[int] = []
        self._base: list[int] = []
        self._offset: list[int] = []
        self._size: list[int] = []
        self._pieces: dict[int, tuple[Piece, ...]] = {}
        self._spaces: dict[int, AddressSpace] = {}

    def __len__(self) -> int:
        return len(self._kind)

    @property
    def full(self) -> bool:
        """No room for one more sample: the batch must leave first."""
        return len(self._kind) >= MOST_LANES or self.arena.size - self.used < self._need

    def add(
        self,
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

    def set_regset(self, lane: int, words: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
        """words: the kernel's user_regs_struct."""
        self._regs[lane] = words[self._slots]

    def set_sp_pc(self, lane: int, sp: int, pc: int) -> None:
        row = self._regs[lane]
        row[self._arch.sp] = sp
        row[self._arch.pc] = pc

    def add_piece(self, lane: int, piece: Piece) -> None:
        self._pieces[lane] = (*self._pieces.get(lane, ()), piece)

    def move(self, lane: int, space: AddressSpace) -> None:
        """The lane turned out to belong to another generation."""
        self._space[lane] = space.id
        self._spaces[space.id] = space

    def take(self, also: Mapping[int, AddressSpace] | None = None) -> SampleBatch:
        """The batch so far; the builder starts anew."""
        n = len(self._kind)
        used = set(self._space)
        batch = SampleBatch(
            arch=self._arch,
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
            ),
            spaces={**(also or {}), **{key: space for key, space in self._spaces.items() if key in used}},
        )
        self._clear()
        return batch
