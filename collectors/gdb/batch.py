"""A batch while it is filled from a stub: stack copies come as bytes, all samples by a stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.sample import Piece, SampleBatch, SampleKind, StackSlab

MOST_LANES = 4096
MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Lane:
    time_ns: int
    tid: int
    space: AddressSpace
    weight: int
    regs: list[int]
    base: int
    stack: bytes
    pieces: tuple[Piece, ...]


class RemoteBatch:
    """pid: of all lanes. unknown: columns that no lane knows."""

    def __init__(self, arch: Arch, pid: int, unknown: frozenset[int]) -> None:
        self._arch = arch
        self._pid = pid
        self._unknown = unknown
        self._lanes: list[_Lane] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def full(self) -> bool:
        return len(self._lanes) >= MOST_LANES or self._bytes >= MOST_BYTES

    def add(
        self,
        time_ns: int,
        tid: int,
        space: AddressSpace,
        weight: int,
        regs: list[int],
        base: int,
        stack: bytes,
        pieces: Sequence[Piece],
    ) -> None:
        """regs: by column. base: avma of the stack copy."""
        self._lanes.append(_Lane(time_ns, tid, space, weight, regs, base, stack, tuple(pieces)))
        self._bytes += len(stack)

    def take(self) -> SampleBatch:
        """The batch so far; the builder starts anew."""
        lanes, self._lanes, self._bytes = self._lanes, [], 0
        n = len(lanes)
        slots = np.array([(len(lane.stack) + 7) & ~7 for lane in lanes], np.int64)
        offset = np.cumsum(slots) - slots
        data = np.frombuffer(b"".join(lane.stack + bytes(-len(lane.stack) % 8) for lane in lanes), np.uint8)
        return SampleBatch(
            arch=self._arch,
            kind=np.full(n, SampleKind.STOPPED, np.uint8),
            time_ns=np.array([lane.time_ns for lane in lanes], np.int64),
            tid=np.array([lane.tid for lane in lanes], np.int32),
            pid=np.full(n, self._pid, np.int32),
            space=np.array([lane.space.id for lane in lanes], np.int32),
            cpu=np.full(n, -1, np.int32),
            weight=np.array([lane.weight for lane in lanes], np.int64),
            regs=np.array([lane.regs for lane in lanes], np.uint64).reshape(n, len(self._arch.registers)),
            stack=StackSlab(
                data=data,
                base=np.array([lane.base for lane in lanes], np.uint64),
                offset=offset,
                size=np.array([len(lane.stack) for lane in lanes], np.int64),
                pieces={i: lane.pieces for i, lane in enumerate(lanes) if lane.pieces},
            ),
            spaces={lane.space.id: lane.space for lane in lanes},
            unknown=self._unknown,
        )
