"""Samples of threads that no longer run, from a core file or a crash dump.

The stack of a thread is copied from its sp upwards. If the walk needs more, the next batch contains the
thread once more, with a longer copy. It may also contain the stack that a signal handler on an alternate
stack interrupted. No stack is read as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.batch_builder import BatchBuilder, BytesMemory, Lane
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.interpreter_reader_protocols import GoroutineOffsets
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import Piece, SampleBatch, SampleKind, make_goroutine_piece
from pyprof.objfile.core_file import SavedMemory
from pyprof.problem_counters import Diagnostics

RED_ZONE = 512
"""Number of bytes below sp that stack copies include, because leaf functions of some ABIs save registers
there (ppc64le: 288).
"""

MAX_BATCH = 64 << 20
MAX_ROUNDS = 16
GROWTH = 4
FIRST_PIECE = 1 << 14
BELOW = 1 << 20
"""Number of bytes below the first missing word that are copied of another stack, because its frame saved
registers there.
"""

MAX_COPY = 256 << 20
MAX_TOTAL = 1 << 30
"""Maximum number of stack bytes that are read of one core file or crash dump, for all threads."""

MIN_COPY = 1 << 14

_SOURCE = 1

RegisterRow = np.ndarray[tuple[int], np.dtype[np.uint64]]


def choose_first_copy(wanted: int, threads: int) -> int:
    """Return the number of stack bytes in the first copy of each thread of a core file or crash dump:
    `wanted`, or less if there are many threads.
    """
    return min(wanted, max(MAX_TOTAL // 2 // max(threads, 1), MIN_COPY))


@dataclass(slots=True)
class SavedThread:
    """A thread of a core file or crash dump, with its registers and the amount of its memory to copy.

    Attributes:
        row: Its registers, by the architecture's register columns.
        size: Number of stack bytes to copy.
        thread_pointer: Its thread pointer, 0 if that is unknown.
        goroutine: Address of the goroutine that it runs, 0 if it runs none.
        pieces: Size in bytes of further memory to copy, by address.
    """

    tid: int
    row: RegisterRow
    size: int
    thread_pointer: int = 0
    goroutine: int = 0
    pieces: dict[int, int] = field(default_factory=dict)


class SavedThreads:
    """The collector that yields the threads of a core file or crash dump as samples. Their tids are unique.

    Args:
        threads: The threads.
        arch: The architecture of the threads.
        memory: Memory from which stacks are copied.
        space: Address space of the process; its read function also reads files.
        diagnostics: Counters of problems. The oddities are added once.
        infos: The names of the threads.
        oddities: How often each oddity of the file was tolerated.
        unknown: Register columns that the file lacks.
    """

    def __init__(
        self,
        threads: Sequence[SavedThread],
        arch: Arch,
        memory: SavedMemory,
        space: AddressSpace,
        diagnostics: Diagnostics,
        infos: Sequence[ThreadInfo] = (),
        oddities: Mapping[str, int] | None = None,
        unknown: frozenset[int] = frozenset(),
    ) -> None:
        self.saved = threads
        self._infos = infos
        self._oddities = oddities or {}
        self._diagnostics = diagnostics
        self._arch = arch
        self._memory = memory
        self._space = space
        self._builder = BatchBuilder([arch], BytesMemory(MAX_BATCH), _SOURCE, unknown)
        self._left = MAX_TOTAL
        self._wanted: list[SavedThread] = []
        self._stopped = False

    def batches(self) -> Iterator[SampleBatch]:
        """Yield samples of all threads of the core file or crash dump. Then yield another sample of each
        thread whose walk needed more memory.
        """
        for oddity, times in self._oddities.items():
            self._diagnostics.count(oddity, times)
        wanted = self.saved
        for _ in range(MAX_ROUNDS):
            self._wanted = []
            yield from self._all(wanted)
            wanted = self._wanted
            if not wanted or self._stopped:
                return

    def add_threads(self, threads: Sequence[SavedThread], infos: Sequence[ThreadInfo]) -> None:
        """Add threads that the file does not list, such as goroutines that no thread runs. This must happen
        before the first batch.
        """
        self.saved = [*self.saved, *threads]
        self._infos = [*self._infos, *infos]

    def find_goroutines(self, offsets: GoroutineOffsets) -> None:
        """Find the goroutine that each saved thread runs. `offsets` are those of structures in the process's
        Go runtime.
        """
        for thread in self.saved:
            if thread.thread_pointer:
                machine = self._word(self._word(thread.thread_pointer + offsets.tls) + offsets.m)
                thread.goroutine = self._word(machine + offsets.curg)

    def _word(self, avma: int) -> int:
        return int.from_bytes(self._space.read(avma, 8), "little") if 0 < avma < 1 << 63 else 0

    def sample_again(self) -> Iterator[SampleBatch]:
        """Yield samples of all saved threads once more, with the amount of memory that their walks needed."""
        yield from self._all(self.saved)

    def stop(self) -> None:
        """Stop repeating saved threads with more memory. Threads without a sample still get one."""
        self._stopped = True

    close = stop

    def threads(self) -> list[ThreadInfo]:
        return list(self._infos)

    def retire(self) -> None:
        """Ignore the call: saved threads do not end."""

    def stats(self) -> CollectorStats:
        return CollectorStats(ticks=1)

    def _all(self, threads: Sequence[SavedThread]) -> Iterator[SampleBatch]:
        at = 0
        while at < len(threads):
            batch, at = self._batch(threads, at)
            yield batch

    def _batch(self, threads: Sequence[SavedThread], at: int) -> tuple[SampleBatch, int]:
        """Return a batch of saved threads from index `at` on, and the index of the first thread after them."""
        builder, first, extra = self._builder, at, 0
        while at < len(threads) and not builder.full and (at == first or builder.memory.used + extra < MAX_BATCH):
            thread = threads[at]
            start, data = self._stack(thread)
            builder.memory.append_copy(data)
            made = Lane(self._arch, SampleKind.STOPPED, 0, self._space.pid, thread.tid, self._space, 1)
            lane = builder.add_sample(made, start, len(data))
            builder.set_registers(lane, thread.row)
            found = [Piece(avma, self._space.read(avma, size)) for avma, size in thread.pieces.items()]
            if thread.goroutine:
                found.append(make_goroutine_piece(thread.goroutine))
            if found:
                builder.add_pieces(lane, found)
                extra += sum(len(piece.data) for piece in found)
            at += 1
        self._left -= builder.memory.used + extra
        (batch,) = builder.take_batches()
        return batch, at

    def _stack(self, thread: SavedThread) -> tuple[int, bytes]:
        """Return (avma, bytes) of a saved thread's stack copy, which includes the red zone below sp if that
        is readable.

        The stack in a dump may begin anywhere between the red zone and sp.
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
        """Schedule another sample, with more memory, of those saved threads whose walk needed a word that the
        core file or dump has.
        """
        by_tid = {thread.tid: thread for thread in self.saved}
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
