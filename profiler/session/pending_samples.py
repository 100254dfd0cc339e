"""Samples of sleeping threads whose unwinding needs a register. The next stop of the same sleep completes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.sample import SampleBatch, SampleKind
from pyprof.records import dataclass
from pyprof.session.sample_rows import Rows, RowStore


@dataclass
class _Held:
    """Rows of samples of one sleep of a thread, which has this stack pointer and pc."""

    sp: int
    pc: int
    rows: list[int]


class HeldSamples:
    """Incomplete samples of sleeping threads in one window, whose rows are amended later."""

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._held: dict[int, _Held] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, batch: SampleBatch, rows: Rows, first: int, lacking: npt.NDArray[np.int64]) -> None:
        """Complete earlier samples of the batch's threads, and remember the new incomplete ones.

        Args:
            batch: The samples.
            rows: Rows of the samples in the store.
            first: Number of the first row.
            lacking: Indices of samples whose unwinding needs a register.
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
