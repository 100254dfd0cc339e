"""Samples of sleeping threads whose stacks need a register: the next stop of the same sleep completes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.records import dataclass
from pyprof.session.rows import Rows


@dataclass
class _Held:
    """Samples of one sleep. rows: (rows, index) of each."""

    sp: int
    pc: int
    rows: list[tuple[Rows, int]]


class HeldSamples:
    """Of one window: rows are changed in place."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, batch: SampleBatch, rows: Rows, lacking: npt.NDArray[np.int64]) -> None:
        """rows: of the batch. lacking: lanes whose stack needs a register."""
        pc, sp = batch.arch.pc, batch.arch.sp
        wanting = set(lacking.tolist())
        for lane, (thread, kind) in enumerate(zip(rows.thread.tolist(), batch.kind.tolist(), strict=True)):
            held = self._held.get(thread)
            if lane in wanting:
                regs = batch.regs[lane]
                if held is None or (held.sp, held.pc) != (int(regs[sp]), int(regs[pc])):
                    held = self._held[thread] = _Held(int(regs[sp]), int(regs[pc]), [])
                held.rows.append((rows, lane))
            elif held is not None:
                if kind == SampleKind.UNCHANGED:
                    held.rows.append((rows, lane))
                    continue
                regs = batch.regs[lane]
                if kind == SampleKind.STOPPED and held.sp == int(regs[sp]):
                    for earlier, row in held.rows:
                        earlier.node[row], earlier.state[row] = rows.node[lane], rows.state[lane]
                del self._held[thread]
