"""Samples of threads that no longer run: all that can be known of them is saved, in a core file or a crash dump.

The stack of a thread is copied from its sp up; where the walk needs more (a longer stack, the stack that a signal
handler on its own stack interrupted), the thread comes again in the next batch with more. Nothing is read whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import BatchBuilder, BytesMemory, Lane
from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.sample import Piece, SampleBatch, SampleKind
from pyprof.objfile.core.memory import SavedMemory
from pyprof.records import dataclass, field

RED_ZONE = 512
"""Bytes below sp that are copied too: leaf functions of some ABIs keep registers there (ppc64le: 288)."""

MAX_BATCH = 64 << 20
MAX_ROUNDS = 16
GROWTH = 4
FIRST_PIECE = 1 << 14
BELOW = 1 << 20
"""Bytes below the first word that was missed of another stack: where its frame saved its registers."""

MAX_COPY = 256 << 20
MAX_TOTAL = 1 << 30
"""Most bytes of stack read of one file, all threads together."""

LEAST_COPY = 1 << 14

_SOURCE = 1

RegisterRow = np.ndarray[tuple[int], np.dtype[np.uint64]]


def first_copy(wanted: int, threads: int) -> int:
    """Bytes of stack that each thread is given at first."""
    return min(wanted, max(MAX_TOTAL // 2 // max(threads, 1), LEAST_COPY))


@dataclass(slots=True)
class SavedThread:
    """A thread and how much of memory it is given. row: its registers, by the architecture's columns."""

    tid: int
    row: RegisterRow
    size: int
    pieces: dict[int, int] = field(default_factory=dict)


class SavedCollector:
    """What a Collector of a file does alike, whatever its format. saved: the threads."""

    saved: SavedThreads

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._tolerated: Counter[str] = Counter()

    def batches(self) -> Iterator[SampleBatch]:
        """All threads, then those again whose walk needed more than they were given."""
        for oddity, times in self._tolerated.items():
            self._diagnostics.count(oddity, times)
        yield from self.saved.batches()

    def learn(self, feedback: Feedback) -> None:
        self.saved.learn(feedback)

    def retire(self) -> None:
        """Nothing comes and goes here."""

    def stats(self) -> CollectorStats:
        return CollectorStats(ticks=1)

    def stop(self) -> None:
        self.saved.stop()

    def close(self) -> None:
        self.saved.stop()


class SavedThreads:
    """The threads of one file: their batches, and what their walks ask for. tids are unique.

    memory: where stacks are copied from; space: whose read knows more (files' contents). unknown: see SampleBatch.
    """

    def __init__(
        self,
        threads: Sequence[SavedThread],
        arch: Arch,
        pid: int,
        memory: SavedMemory,
        space: AddressSpace,
        unknown: frozenset[int] = frozenset(),
    ) -> None:
        self.threads = threads
        self._arch = arch
        self._pid = pid
        self._memory = memory
        self._space = space
        self._builder = BatchBuilder([arch], BytesMemory(MAX_BATCH), _SOURCE, unknown)
        self._left = MAX_TOTAL
        self._wanted: list[SavedThread] = []
        self._stopped = False

    def batches(self) -> Iterator[SampleBatch]:
        """All threads, then those again whose walk needed more than they were given."""
        wanted = self.threads
        for _ in range(MAX_ROUNDS):
            self._wanted = []
            yield from self._all(wanted)
            wanted = self._wanted
            if not wanted or self._stopped:
                return

    def again(self) -> Iterator[SampleBatch]:
        """All threads once more, with what they were given last."""
        yield from self._all(self.threads)

    def stop(self) -> None:
        """No thread comes a further time; those that have not come yet still do."""
        self._stopped = True

    def _all(self, threads: Sequence[SavedThread]) -> Iterator[SampleBatch]:
        at = 0
        while at < len(threads):
            batch, at = self._batch(threads, at)
            yield batch

    def _batch(self, threads: Sequence[SavedThread], at: int) -> tuple[SampleBatch, int]:
        """A batch from the threads from `at` on, and where the next one begins."""
        builder, first, extra = self._builder, at, 0
        while at < len(threads) and not builder.full and (at == first or builder.memory.used + extra < MAX_BATCH):
            thread = threads[at]
            start, data = self._stack(thread)
            builder.memory.put(data)
            made = Lane(self._arch, SampleKind.STOPPED, 0, self._pid, thread.tid, self._space, 1)
            lane = builder.add(made, start, len(data))
            builder.set_registers(lane, thread.row)
            if thread.pieces:
                found = [Piece(avma, self._space.read(avma, size)) for avma, size in thread.pieces.items()]
                builder.add_pieces(lane, found)
                extra += sum(len(piece.data) for piece in found)
            at += 1
        self._left -= builder.memory.used + extra
        (batch,) = builder.take()
        return batch, at

    def _stack(self, thread: SavedThread) -> tuple[int, bytes]:
        """(avma, bytes) of the thread's stack, the red zone included where it is readable.

        A dump's stack may begin anywhere between that and sp itself.
        """
        sp = int(thread.row[self._arch.sp])
        region = self._memory.region_at(sp)
        low = max((sp & -16) - RED_ZONE, 0)
        for start in (low, max(region.start, low) if region else sp):
            data = self._memory.read(start, thread.size + sp - start)
            if start + len(data) > sp:
                return start, data
        return sp, b""

    def learn(self, feedback: Feedback) -> None:
        """A thread that needed a word which the file has comes again with it."""
        by_tid = {thread.tid: thread for thread in self.threads}
        for tid, missing in zip(feedback.batch.tid.tolist(), feedback.missing.tolist(), strict=True):
            thread = by_tid[tid]
            if not missing or self._left < 0 or len(self._space.read(missing, self._arch.word)) < self._arch.word:
                continue
            sp = int(thread.row[self._arch.sp])
            if sp <= missing < sp + GROWTH * GROWTH * thread.size and thread.size < MAX_COPY:
                thread.size = min(max(GROWTH * thread.size, missing - sp + thread.size), MAX_COPY)
            else:
                region = self._memory.region_at(missing)
                start = max(missing - BELOW, region.start if region else missing) & -16
                size = missing - start + min(GROWTH * max(thread.pieces.values(), default=FIRST_PIECE), MAX_COPY)
                thread.pieces[start] = size
            self._wanted.append(thread)
