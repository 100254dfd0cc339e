"""States of a tracee as samples of a SampleBatch, each with the stack according to the shadow stack."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.procfs import parse_maps
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import Piece, SampleBatch, SampleKind, StackSlab
from tests.oracle.shadow import RED_ZONE, Entry
from tests.oracle.tracer import Tracee

Key = tuple[int, int, int, int]
"""(space id, pc, sp, number of the shadow's innermost entry) of a state."""


@dataclass
class State:
    """One future sample of a batch.

    Attributes:
        stack: Bytes from sp up.
        pieces: The stacks that signal handlers interrupted.
    """

    key: Key
    entry: Entry
    pc: int
    sp: int
    regs: list[int]
    stack: bytes
    pieces: tuple[Piece, ...]
    time_ns: int

    def expected(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """Return the pc of each frame from leaf to root, and whether it is exact."""
        chain = self.entry.chain()
        pcs = np.array([self.pc, *[e.pc for e in chain]], np.uint64)
        return pcs, np.array([True, *[e.exact for e in chain]], np.bool_)


class Spaces:
    """The tracee's current address space, replaced whenever code or files have changed."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self.now: AddressSpace | None = None
        self.stack_end = 0

    def refresh(self) -> AddressSpace:
        with open(f"/proc/{self._tracee.pid}/maps", "rb") as file:
            mappings = parse_maps(file.read())
        self.stack_end = max((m.end for m in mappings if m.path == "[stack]"), default=0)
        kept = tuple(m for m in mappings if m.inode or m.executable)
        if self.now is None or tuple(m for m in self.now.mappings if m.inode or m.executable) != kept:
            number = self.now.id + 1 if self.now else 1
            pid = self._tracee.pid
            self.now = AddressSpace(number, pid, number, mappings, self._tracee.read, f"/proc/{pid}/root")
        return self.now


def capture(tracee: Tracee, key: Key, entry: Entry, stack_end: int) -> State:
    """Return the sample of the current state."""
    regs = tracee.regs
    pc, sp = key[1], key[2]
    pieces = []
    end, handler = stack_end, entry.segment
    if handler is not None and handler.low:
        end = handler.high
    while handler is not None:
        if handler.low:
            outer = handler.outer.segment if handler.outer else None
            upto = outer.high if outer is not None and outer.low else stack_end
            start = handler.interrupted_sp - RED_ZONE
            pieces.append(Piece(start, tracee.read(start, upto - start)))
        handler = handler.outer.segment if handler.outer else None
    return State(
        key,
        entry,
        pc,
        sp,
        [regs[i] for i in X86_64.kernel.prstatus],
        tracee.read(sp, end - sp),
        tuple(pieces),
        time.monotonic_ns(),
    )


def batch_of(states: list[State], pid: int, spaces: dict[int, AddressSpace]) -> SampleBatch:
    n = len(states)
    sizes = np.array([len(s.stack) for s in states], np.int64)
    offsets = np.zeros(n, np.int64)
    np.cumsum((sizes[:-1] + 7) & ~7, out=offsets[1:])
    data = bytearray(int(((sizes + 7) & ~7).sum()))
    for state, offset in zip(states, offsets.tolist(), strict=True):
        data[offset : offset + len(state.stack)] = state.stack
    return SampleBatch(
        arch=X86_64,
        kind=np.full(n, SampleKind.STOPPED, np.uint8),
        time_ns=np.array([s.time_ns for s in states], np.int64),
        tid=np.full(n, pid, np.int32),
        pid=np.full(n, pid, np.int32),
        space=np.array([s.key[0] for s in states], np.int32),
        cpu=np.full(n, -1, np.int32),
        weight=np.ones(n, np.int64),
        regs=np.array([s.regs for s in states], np.uint64).reshape(n, len(X86_64.registers)),
        stack=StackSlab(
            np.frombuffer(bytes(data), np.uint8),
            np.array([s.sp for s in states], np.uint64),
            offsets,
            sizes,
            {i: s.pieces for i, s in enumerate(states) if s.pieces},
        ),
        spaces=spaces,
    )
