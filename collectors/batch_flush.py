"""Division of a collector's batches at the times of requested flushes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from pyprof.flush_protocol import FlushProtocol
from pyprof.model.sample import SampleBatch

Completion = Callable[[list[SampleBatch], int], Iterator[SampleBatch]]
"""(batches, until_ns) -> these batches, and samples of other sources until that time."""


def _as_they_are(batches: list[SampleBatch], _until_ns: int) -> Iterator[SampleBatch]:
    return iter(batches)


def split_at_flushes(
    handover: FlushProtocol, batches: list[SampleBatch], reached_ns: int, complete: Completion = _as_they_are
) -> Iterator[SampleBatch]:
    """Yield batches in parts that end where a flush was requested, and acknowledge each part.

    Args:
        handover: The flushes of the recording.
        batches: At least one batch. These and earlier ones hold all samples before reached_ns.
        reached_ns: End of the last part.
        complete: Yields a part together with samples of another source from the same time.
    """
    nothing = batches[0].take(np.zeros(0, np.int64))
    while True:
        until_ns = handover.bound(reached_ns)
        is_last = until_ns >= reached_ns
        yield from complete(batches if is_last else _part(batches, until_ns, early=True), until_ns)
        if handover.gave(until_ns):
            yield nothing
        if is_last:
            return
        batches = _part(batches, until_ns, early=False)


def _part(batches: Iterable[SampleBatch], until_ns: int, early: bool) -> list[SampleBatch]:
    return [batch.take(np.flatnonzero((batch.time_ns <= until_ns) == early)) for batch in batches]
