"""The stacks of goroutines that no thread runs, as samples in addition to those of the threads (`dump --goroutines`).

A goroutine has the name "goroutine 12" and a negative tid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.postmortem.saved_thread_collector import SavedThread, SavedThreads
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.errors import FormatError, PyprofError
from pyprof.interpreters.detection_symbols import KnownSymbols, ReadSymbols
from pyprof.interpreters.goroutines import WANTED, WaitingGoroutine, is_unchanged, read_goroutines
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.thread_stacks import GOROUTINE
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.core_file import SavedMemory, SavedRange
from pyprof.problem_counters import Diagnostics

_MAX_STACK = 1 << 20
"""Maximum number of bytes that are copied of one goroutine's stack."""
_MAX_COPIED = 64 << 20
"""Maximum number of bytes that are copied of all goroutines' stacks."""


class GoroutineStacks:
    """The goroutines of a process that no thread runs.

    Attributes:
        goroutines: These goroutines, by the negative tid that they have in the samples.
    """

    def __init__(
        self, space: AddressSpace, arch: Arch, read_symbols: ReadSymbols, diagnostics: Diagnostics, now_ns: int = 0
    ) -> None:
        """Find the goroutines of a process.

        Args:
            space: The address space of the process.
            arch: The architecture of the process.
            read_symbols: Reads the symbols of the program.
            diagnostics: Counts goroutines that are left out.
            now_ns: Current time of the target's monotonic clock in nanoseconds, from which waiting times are computed;
                0 if unknown.

        Raises:
            PyprofError: The process has no goroutines, or none that can be read.
        """
        program = next((m for m in space.modules if m.has_file and any(part.executable for part in m.mappings)), None)
        found = KnownSymbols(read_symbols).find_first(space, [program], WANTED) if program is not None else None
        if found is None or arch.name != "x86_64":
            why = "the program does not have the symbol runtime.allgs, or is not for x86-64"
            raise PyprofError(f"cannot find goroutines: {why}", "leave out --goroutines")
        try:
            listed = read_goroutines(space.read, found[1].symbols, now_ns, diagnostics)
        except FormatError as error:
            raise PyprofError(f"cannot read goroutines: {error.message}", "leave out --goroutines") from error
        self.goroutines: dict[int, WaitingGoroutine] = {}
        self._copies: list[tuple[int, bytes]] = []
        left = _MAX_COPIED
        for goroutine, g in listed:
            data = space.read(goroutine.sp, min(goroutine.stack_end - goroutine.sp, _MAX_STACK, left))
            if data and is_unchanged(space.read, g, goroutine):
                self.goroutines[-1 - len(self.goroutines)] = goroutine
                self._copies.append((goroutine.sp, data))
                left -= len(data)
        self._space, self._arch = space, arch

    def states(self) -> dict[int, str]:
        """Return the state of each goroutine, such as "chan receive", by its tid in the samples."""
        return {tid: goroutine.state for tid, goroutine in self.goroutines.items()}

    def infos(self, process: str) -> list[ThreadInfo]:
        """Return a ThreadInfo for each goroutine, because a profile shows goroutines as threads.

        Args:
            process: Name of their process.
        """
        pid = self._space.pid
        return [
            ThreadInfo(pid, tid, f"{GOROUTINE}{goroutine.number}", process)
            for tid, goroutine in self.goroutines.items()
        ]

    def saved_threads(self) -> list[SavedThread]:
        """Return the goroutines as threads with their saved registers, pc and sp."""
        found = []
        for (tid, goroutine), (_, data) in zip(self.goroutines.items(), self._copies, strict=True):
            row = np.zeros(len(self._arch.registers), np.uint64)
            row[self._arch.pc], row[self._arch.sp] = goroutine.pc, goroutine.sp
            found.append(SavedThread(tid, row, len(data)))
        return found

    def collector(self) -> SavedThreads:
        """Return a collector of samples of the goroutines, from the copies of their stacks."""
        ranges, parts, offset = [], [], 0
        for start, data in sorted(self._copies):
            end = start + len(data)
            ranges.append(SavedRange(start, end, end, offset, 0))
            parts.append(data)
            offset += len(data)
        memory = SavedMemory(BytesSource(b"".join(parts)), ranges)
        unknown = frozenset(range(len(self._arch.registers))) - {self._arch.pc, self._arch.sp}
        return SavedThreads(self.saved_threads(), self._arch, memory, self._space, Diagnostics(), unknown=unknown)


class GoroutineCollector:
    """A collector of the threads of one process, and once of its goroutines that no thread runs.

    Attributes:
        goroutines: The goroutines, None before the first batch with samples of threads.
    """

    def __init__(self, own: PtraceCollector, find: Callable[[AddressSpace], GoroutineStacks]) -> None:
        """Make a collector of the threads and the goroutines of a process.

        Args:
            own: Collector of the threads.
            find: Finds the goroutines in the address space of the process.
        """
        self.goroutines: GoroutineStacks | None = None
        self._own = own
        self._find = find
        self._saved: SavedThreads | None = None

    def batches(self) -> Iterator[SampleBatch]:
        for batch in self._own.batches():
            yield batch
            if self.goroutines is None and batch.spaces:
                self.goroutines = self._find(next(iter(batch.spaces.values())))
                self._saved = self.goroutines.collector()
                yield from self._saved.batches()

    def learn(self, feedback: Feedback) -> None:
        if self._saved is not None and (feedback.batch.tid < 0).any():
            self._saved.learn(feedback)
        else:
            self._own.learn(feedback)

    def threads(self) -> list[ThreadInfo]:
        own = self._own.threads()
        return own + self.goroutines.infos(own[0].process if own else "") if self.goroutines is not None else own

    def retire(self) -> None:
        self._own.retire()

    def stats(self) -> CollectorStats:
        return self._own.stats()

    def stop(self) -> None:
        self._own.stop()

    def close(self) -> None:
        self._own.close()
