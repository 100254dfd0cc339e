"""Samples of sleeping threads whose stacks need a register: the next stop of the same sleep completes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.records import dataclass
from pyprof.session.rows import Rows, RowStore


@dataclass
class _Held:
    """Samples of one sleep. rows: number of each."""

    sp: int
    pc: int
    rows: list[int]


class HeldSamples:
    """Of one window: its rows are amended."""

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._held: dict[int, _Held] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, batch: SampleBatch, rows: Rows, first: int, lacking: npt.NDArray[np.int64]) -> None:
        """rows: of the batch, in the store. first: number of the first one. lacking: lanes whose stack needs a
        register.
        """
        pc, sp = batch.arch.pc, batch.arch.sp
        wanting = set(lacking.tolist())
        for lane, (thread, kind) in enumerate(zip(rows.thread.tolist(), batch.kind.tolist(), strict=True)):
            held = self._held.get(thread)
            if lane in wanting:
                regs = batch.regs[lane]
                if held is None or (held.sp, held.pc) != (int(regs[sp]), int(regs[pc])):
                    held = self._held[thread] = _Held(int(regs[sp]), int(regs[pc]), [])
                held.rows.append(first + lane)
            elif held is not None:
                if kind == SampleKind.UNCHANGED:
                    held.rows.append(first + lane)
                    continue
                regs = batch.regs[lane]
                if kind == SampleKind.STOPPED and held.sp == int(regs[sp]):
                    for row in held.rows:
                        self._store.amend(row, int(rows.node[lane]), int(rows.state[lane]))
                del self._held[thread]
