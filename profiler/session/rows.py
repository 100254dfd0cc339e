"""Rows of a recording: what is kept of each sample once its stack is a node of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.records import dataclass, field_names

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

UNKNOWN = -1


@dataclass(slots=True)
class Rows:
    """Columns of shape (n,), one row a sample.

    time_ns: since the epoch. node: of StackTable, UNKNOWN until it is known. state: SampleState of what ran. taken: of
    how the sample was taken. thread: its number in the Recorder. cpu: UNKNOWN where nobody said. weight: periods of
    sampling. length_ns: the time that the sample stands for, UNKNOWN where weight says it.
    """

    time_ns: I64
    node: I32
    state: I32
    taken: I32
    thread: I32
    cpu: I32
    weight: I64
    length_ns: I64

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, rows: I64 | Sequence[int]) -> Rows:
        """The rows of these indices."""
        return Rows(*(getattr(self, name)[rows] for name in field_names(Rows)))


def no_lengths(n: int) -> I64:
    """Lengths of n rows that are not known, without memory for each."""
    return np.broadcast_to(np.int64(UNKNOWN), n)


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of a window. Where lengths are known, batches of several sources overlap: they are put in time order."""
    if not parts:
        none, small = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return Rows(none, small, small, small, small, small, none, none)
    known = any(part.length_ns.strides != (0,) for part in parts)
    names = [name for name in field_names(Rows) if known or name != "length_ns"]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    if not known:
        return Rows(**columns, length_ns=no_lengths(len(columns["time_ns"])))
    rows = Rows(**columns)
    return rows.take(np.argsort(rows.time_ns, kind="stable"))
